"""The migration of waiting messages: the dry run, the order of steps, request and progress."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from delayboard.delay_migration import migrate as migrations
from delayboard.delay_migration.check import check, find_source_problem
from delayboard.delay_migration.move_messages import malformed_queue
from delayboard.models import DelayMigration
from delayboard.models.background_task import MIGRATIONS, is_missing
from delayboard.views.confirm_production import FIELD, Effect, confirmation
from delayboard.views.show_refusal import show_refusal
from topology import access
from topology.broker.errors import BrokerError
from topology.models import Role, State, Topology
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.views.topologies.tabs import with_topology


@require_safe
@with_topology(Role.OPERATOR)
def migrate_delays(request: HttpRequest, source: Topology) -> HttpResponse:
    """What a migration to the chosen target would do, and how far the latest one is."""
    targets = _targets(request, source)
    latest = DelayMigration.objects.filter(source=source)
    migration = latest.select_related("target__broker", "work", "requested_by").first()
    if migration and not access.may(request.user, migration.target.broker, Role.OPERATOR):
        migration = None
    is_open = migration is not None and not migration.work.is_ended
    context: dict[str, Any] = {
        "source": source,
        "targets": targets,
        "migration": migration,
        "is_open": is_open,
        "malformed_queue": malformed_queue(source),
        "can_request": not is_open,
        "worker_is_missing": is_missing(MIGRATIONS),
        "source_problem": find_source_problem(source),
    }
    if slug := request.GET.get("target"):
        target = context["target"] = targets.filter(slug=slug).first()
        if target is None:
            raise Http404("No delay levels with this name can be a target.")
        if migration and is_open and migration.target_id != target.pk:
            context["can_request"] = migrations.is_replaceable(migration)
        try:
            context["dry_run"] = check(source, target, datetime.now(UTC))
        except (Refusal, BrokerError) as error:
            context["problem"] = str(error)
    return render(request, "delayboard/delay_migration.html", context)


@require_POST
@with_topology(Role.OPERATOR)
def delay_migration_request(request: HttpRequest, source: Topology) -> HttpResponse:
    target = get_object_or_404(_targets(request, source), slug=request.POST.get("target", ""))
    back = _page(source, target)
    effect = Effect(
        f"Delayboard will move all waiting messages of “{source.name}” on {source.broker.name} to "
        f"“{target.name}” on {target.broker.name}, each with its remaining delay.",
        back,
    )
    # The name of each production broker; without one, of the source's.
    both = {target.broker: "confirm_target", source.broker: FIELD}
    asked = [one for one in both if one.is_production] or [source.broker]
    for broker in asked:
        page = confirmation(
            request, broker, "Request migration", effect, is_needed=True, field=both[broker]
        )
        if page:
            return page
    with show_refusal(request, "The migration is not requested.", Refusal):
        migrations.request(request.user, source, target, takes_undated=_takes_undated(request))
        messages.success(request, "The migration is requested.")
    return redirect(back)


@require_POST
@with_topology(Role.OPERATOR, changes=False)
def delay_migration_pause(request: HttpRequest, source: Topology) -> HttpResponse:
    refusal = "The migration is not paused, because none is running."
    return _change(request, source, migrations.pause, "The migration is paused.", refusal)


@require_POST
@with_topology(Role.OPERATOR, changes=False)
def delay_migration_cancel(request: HttpRequest, source: Topology) -> HttpResponse:
    refusal = "The migration is not cancelled. Pause it, and wait until the worker has stopped."
    return _change(request, source, migrations.cancel, "The migration is cancelled.", refusal)


@require_POST
@with_topology(Role.OPERATOR)
def delay_migration_continue(request: HttpRequest, source: Topology) -> HttpResponse:
    refusal = "The migration does not continue, because none is paused."
    resume = partial(migrations.resume, takes_undated=_takes_undated(request))
    return _change(request, source, resume, "The migration continues.", refusal)


def _takes_undated(request: HttpRequest) -> bool:
    return bool(request.POST.get("takes_undated"))


def _change(
    request: HttpRequest,
    source: Topology,
    change: Callable[[Any, Topology], bool],
    done: str,
    refusal: str,
) -> HttpResponse:
    target = _open_target(request, source)
    if target is None:
        messages.error(request, "No migration of this topology is open.")
        return redirect("migrate_delays", slug=source.slug)
    if change(request.user, source):
        messages.success(request, done)
    else:
        messages.error(request, refusal)
    return redirect(_page(source, target))


def _targets(request: HttpRequest, source: Topology) -> QuerySet[Topology]:
    operated = access.visible_brokers(request.user, Role.OPERATOR)
    targets = Topology.objects.filter(kind=LEVELS, state=State.APPLIED, broker__in=operated)
    return targets.exclude(pk=source.pk).select_related("broker").order_by("name")


def _open_target(request: HttpRequest, source: Topology) -> Topology | None:
    """The target of the open migration, None for none. Raises PermissionDenied without the role
    there.
    """
    rows = migrations.open_migrations().filter(source=source).select_related("target__broker")
    row = rows.first()
    if row is None:
        return None
    access.require(request.user, row.target.broker, Role.OPERATOR)
    return row.target


def _page(source: Topology, target: Topology) -> str:
    if target.state != State.APPLIED:
        return reverse("migrate_delays", args=[source.slug])
    query = urlencode({"target": target.slug})
    return f"{reverse('migrate_delays', args=[source.slug])}?{query}"
