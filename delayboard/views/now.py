"""The first page: what is going on, and what needs somebody."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from delayboard.dead_letters.replay.present import summary
from delayboard.now.board import BROKER_AGE, overview
from delayboard.templatetags.delayboard import bytesize
from topology import access
from topology.operations.replace_tap import list_stream_taps


@require_safe
def now(request: HttpRequest) -> HttpResponse:
    brokers = list(access.visible_brokers(request.user))
    at = datetime.now(UTC)
    seen = overview(brokers, at, BROKER_AGE)
    background_tasks = [
        (background_task, describe_details(background_task.details))
        for background_task in seen.background_tasks
    ]
    live = ",".join(str(broker.pk) for broker in brokers)
    context = {
        "overview": seen,
        "at": at,
        "brokers": brokers,
        "background_tasks": background_tasks,
        "live": live,
        "stream_taps": list_stream_taps(request.user, brokers),
        "batches": summary.make_lines(request.user, seen.batches),
    }
    return render(request, "delayboard/now.html", context)


def describe_details(details: Mapping[str, Any]) -> str:
    """What a task reports of itself, as a person reads it."""
    return ", ".join(
        _describe(name.replace("_", " "), value)
        for name, value in details.items()
        if value is not None and not isinstance(value, dict)
    )


def _describe(words: str, value: Any) -> str:
    if isinstance(value, bool):
        return words if value else f"not {words}"
    if words.endswith(" bytes"):
        return f"{bytesize(value)} {words.removesuffix(' bytes')}"
    if words.endswith(" seconds"):
        return f"{value:.1f} s {words.removesuffix(' seconds')}"
    if words.endswith(" at"):
        return f"{words.removesuffix(' at')} at {str(value)[11:19]}"
    return f"{words} {value}"
