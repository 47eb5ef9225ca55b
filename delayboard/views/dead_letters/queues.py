"""Which queues hold dead letters: a person confirms or denies it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from delayboard.dead_letters.queues import failures
from delayboard.dead_letters.queues.candidates import candidates
from delayboard.dead_letters.queues.confirmed import Undecided, decide, destinations
from delayboard.views.show_refusal import show_refusal
from topology import access, snapshots
from topology.content.text import count_of
from topology.models import Broker, Role
from topology.views.redirect_back import next_of


@require_POST
@access.with_broker(Role.OPERATOR)
def dead_letter_queue_decide(request: HttpRequest, broker: Broker) -> HttpResponse:
    """`confirmed` 1 or 0 of the queue `name`; back to `next`, or to the list."""
    name = request.POST.get("name", "")
    is_confirmed = request.POST.get("confirmed") == "1"
    snapshot = snapshots.fresh(broker).snapshot
    with show_refusal(request, "Nothing was changed.", Undecided):
        decide(request.user, broker, name, snapshot, is_confirmed=is_confirmed)
        done = "excluded from the dead-letter queues."
        if is_confirmed:
            done = "marked as a dead-letter queue. You can park it now."
        messages.success(request, f"“{name}” is {done}")
    page = f"{reverse('dead_letters')}?{urlencode({'broker': broker.slug})}"
    return redirect(next_of(request, page))


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def check_queues(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Look for failed messages in undecided queues; what is found is proposed."""
    back = redirect(f"{reverse('dead_letters')}?{urlencode({'broker': broker.slug})}")
    snapshot = snapshots.fresh(broker).snapshot
    if snapshot is None:
        messages.error(request, f"No queue was checked. {broker.name} has not answered yet.")
        return back
    names = failures.select_queues(broker, candidates(snapshot, destinations(broker, snapshot)))
    checked = failures.check_queues(request.user, broker, snapshot, names)
    for problem in checked.problems:
        messages.warning(request, problem)
    left = (
        f" {checked.unchecked} were not checked. Mark queues with failures yourself."
        if checked.unchecked
        else ""
    )
    number = count_of(checked.number, "queue")
    failed = len(checked.failed)
    messages.success(request, f"{number} checked, {failed} with failed messages.{left}")
    return back
