"""Every page of the URL conf but the admin's, with objects that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from analytics.models import LogImport, NightlyReport, Run, ScheduledMessage
from delayboard.models import (
    AlertMessage,
    AlertReceiver,
    ParkedChange,
    Parking,
    Publication,
    PublishJob,
)
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import draft
from topology import work
from topology.models import Topology
from topology.models.client_convention import ClientConvention

QUERIES = {
    "analytics:report_messages": {"kind": "retried"},
    "dead_letter_queue": {"name": "orders"},
    "parked_messages_export": {"as": "csv"},
    "topology:topology_export": {"format": "definitions"},
}
# They ask no broker, and what they need is tested with a provider.
OF_SIGN_IN = ("account_", "mfa_", "openid_connect_", "provider_sign_in", "sign_in_link")
# What these answer with is a file, or says nothing of a broker.
WITHOUT_BROKER = {
    "api_document",
    "client_convention_export",
    "demo",
    "login",
    "logout",
    "parked_message_body",
    "analytics:report_table",
    "analytics:report_messages",
    "analytics:stored_report",
    "alerts",
    "webhooks",
    "analytics:runs",
    "analytics:nightly_run",
    "topology:topology_export",
}


def alert_message() -> AlertMessage:
    receiver, _ = AlertReceiver.objects.get_or_create(channel="email", name="a@example.org")
    message = {"title": "Delayboard: 1 problem", "body": "-", "created_at": timezone.now()}
    return AlertMessage.objects.get_or_create(receiver=receiver, defaults=message)[0]


def addresses(pair: Topology) -> dict[str, str]:
    """Every address of the URL conf but the admin's, by its name, with objects that exist."""
    publication = Publication.objects.create(broker=pair.broker, size=1)
    own = work.create("publish", pair.broker.pk, broker=pair.broker, user=None)
    PublishJob.objects.create(pk=publication.pk, broker=pair.broker, work=own, number=1, rate=1)
    batch = draft(pair.broker)
    if not ScheduledMessage.objects.filter(pk=batch.pk).exists():
        now = timezone.now()
        ScheduledMessage.objects.create(
            pk=batch.pk,
            broker=pair.broker,
            topology=pair,
            attempt=1,
            requested_delay=timedelta(hours=1),
            entered_at=now,
            due_at=now + timedelta(hours=1),
        )
    report, _ = NightlyReport.objects.get_or_create(
        day=date(2026, 11, 20), defaults={"made_at": timezone.now(), "html": "A report."}
    )
    Run.objects.get_or_create(day=report.day)
    convention, _ = ClientConvention.objects.get_or_create(broker=pair.broker, name="shop")
    parked_message = parked(pair.broker, a_message())[0]
    rows = {
        "parked_message": parked_message.pk,
        "parked_message_body": parked_message.pk,
        "message_group": parked_message.group_id,
        "alert_send": alert_message().pk,
        "client_convention_export": convention.pk,
        "analytics:import": LogImport.objects.create(file_name="a.jsonl").pk,
        "parking": Parking.objects.create(broker=pair.broker, queue="dead").pk,
        "parked_messages_change": ParkedChange.objects.create(
            broker=pair.broker, newest=0, requested=0
        ).pk,
    }
    there = {
        ("slug", "SlugConverter"): pair.slug,
        ("broker_slug", "SlugConverter"): pair.broker.slug,
        ("kind", "SlugConverter"): pair.kind,
        ("kind", "StringConverter"): pair.kind,
        ("pk", "UUIDConverter"): publication.pk,
        ("pk", "IntConverter"): batch.pk,
        ("position", "IntConverter"): 1,
        ("key", "SlugConverter"): "f01",
        ("day", "SlugConverter"): "2026-11-20",
        ("suffix", "SlugConverter"): "html",
        ("name", "SlugConverter"): "scheduled",
    }
    found = {}
    for name, converters in named(get_resolver().url_patterns, {}):
        # The API answers to tokens alone.
        if name.startswith(OF_SIGN_IN) or name == "api":
            continue
        values = {key: there[key, type(kind).__name__] for key, kind in converters.items()}
        values |= {"pk": rows[name]} if name in rows else {}
        values |= {"key": "lateness"} if name == "analytics:report_table" else {}
        found[name] = reverse(name, kwargs=values)
    found["scheduled_change"] += f"?message={batch.pk}&kind=cancel"
    return found


def named(
    patterns: list[Any], outer: Mapping[str, Any], space: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of each address and the converters of its parameters."""
    for pattern in patterns:
        converters = {**outer, **pattern.pattern.converters}
        if isinstance(pattern, URLResolver) and pattern.namespace != "admin":
            inner = f"{pattern.namespace}:" if pattern.namespace else ""
            yield from named(pattern.url_patterns, converters, space + inner)
        elif isinstance(pattern, URLPattern) and pattern.name:
            yield space + pattern.name, converters
