"""Publishes one message as the page Publish does, and waits for its arrival on request."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.management.base import BaseCommand, CommandError, CommandParser

from delayboard.forms.publish import PublishForm
from delayboard.management.confirmation import add_confirmation, unconfirmed
from delayboard.models import Publication
from delayboard.models.publication import Sent
from delayboard.publishing.body import FORMATS
from delayboard.publishing.predict_message import predict_message
from delayboard.publishing.send import send
from delayboard.publishing.track import Track, track
from topology import latest
from topology.broker.errors import alarm_sentence
from topology.broker.properties.field_values import FieldError
from topology.models import Broker

# Not observed within the time of --wait.
UNSEEN_CODE = 3
# No answer of the broker, and no arrival observed: the message may be published.
UNKNOWN_CODE = 4
CHECK_SECONDS = 0.2
TEXTS = {
    "topology": "topology slug, as in its page's address",
    "delay": "such as 90s or 1h30m",
    "due-at": "a time instead of a delay, such as 2026-11-24T15:30",
    "target": "destination, if the topology needs one",
    "broker": "broker slug, without a topology",
    "exchange": "empty for the default exchange",
    "routing-key": "",
    "content-type": "",
    "headers": "a JSON object",
    "expiration": "message TTL, such as 30s",
    "message-id": "",
    "correlation-id": "",
    "type": "",
}


class Command(BaseCommand):
    help = (
        "Publish one message through a topology, or to an exchange of a broker. Exits with 0 when "
        "the broker confirmed it, with 3 when --wait ended before its delivery was observed, "
        "with 4 when it is possibly published and its delivery was not observed, and with 1 when "
        "it is not published."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        for name, words in TEXTS.items():
            parser.add_argument(f"--{name}", default="", help=words)
        body = parser.add_mutually_exclusive_group()
        body.add_argument("--body", default="")
        body.add_argument("--body-file", help="a file with the bytes of the body, - for stdin")
        kinds = [kind for kind, _ in FORMATS]
        parser.add_argument("--body-format", choices=kinds, default="text")
        parser.add_argument("--dry-run", action="store_true", help="only predict the route")
        parser.add_argument("--wait", type=float, help="seconds to wait for the arrival")
        parser.add_argument("--json", action="store_true", help="one JSON object per line")
        add_confirmation(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        form = PublishForm(_typed(given), brokers=Broker.objects.all())
        _check(form)
        broker, outgoing = form.chosen_broker, form.outgoing()
        known = latest.fresh(broker)
        if known.snapshot is None or known.error:
            raise CommandError(f"Nothing was published. {known.error}")
        if not form.check_target(known.snapshot.definitions):
            _check(form)
        prediction = predict_message(broker, known.snapshot, outgoing)
        self._say(given, "predicted", prediction.sentence)
        if given["dry_run"]:
            return
        if refusal := unconfirmed(broker, given):
            raise CommandError(f"Nothing was published. {refusal}")
        if known.snapshot.alarms:
            raise CommandError(f"Nothing was published. {alarm_sentence(known.snapshot.alarms)}")
        try:
            row = send(AnonymousUser(), broker, outgoing, prediction)
        except FieldError as error:
            raise CommandError(f"Nothing was published. {error}") from error
        if row.sent == Sent.REFUSED:
            raise CommandError(f"The message is {row.outcome.label}. {row.error}")
        is_confirmed = row.sent == Sent.CONFIRMED
        if is_confirmed:
            self._say(given, "published", f"The broker confirmed the message {row.pk}.")
        else:
            sentence = f"The message {row.pk} is {Sent.UNKNOWN.label}. {row.error}"
            self._say(given, "unknown", sentence)
        is_observed = given["wait"] is not None and self._wait(row, given)
        if not is_confirmed and not is_observed:
            sys.exit(UNKNOWN_CODE)
        if given["wait"] is not None and not is_observed:
            sys.exit(UNSEEN_CODE)

    def _wait(self, row: Publication, given: dict[str, Any]) -> bool:
        """Whether its delivery was observed in time."""
        seen = wait_for(row, given["wait"])
        self._say(given, seen.mark, seen.sentence)
        return seen.mark == "arrived"

    def _say(self, given: dict[str, Any], state: str, sentence: str) -> None:
        found = {"state": state, "sentence": sentence}
        self.stdout.write(json.dumps(found, ensure_ascii=False) if given["json"] else sentence)


def wait_for(row: Publication, seconds: float) -> Track:
    """Where the message is when it arrived, or when these seconds are over."""
    until = time.monotonic() + seconds
    while True:
        seen = track(row, datetime.now(UTC))
        if seen.is_settled or time.monotonic() >= until:
            return seen
        time.sleep(CHECK_SECONDS)


def _typed(given: dict[str, Any]) -> dict[str, Any]:
    """As the form of the page posts it."""
    typed = {name: given[name] for name in (text.replace("-", "_") for text in TEXTS)}
    typed |= {"body": given["body"], "body_format": given["body_format"], "persistent": "1"}
    if given["body_file"] is not None:
        typed |= {"body": _read_file(given["body_file"]), "body_format": "base64"}
    return typed


def _read_file(name: str) -> str:
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"The file {name} was not read: {error.strerror}.") from error
    return b64encode(content).decode()


def _check(form: PublishForm) -> None:
    """Raises CommandError with what is wrong with each value."""
    if form.is_valid():
        return
    problems = [
        f"--{name.replace('_', '-')}: {problem}" if name != "__all__" else str(problem)
        for name, found in form.errors.items()
        for problem in found
    ]
    raise CommandError(f"Nothing was published. {' '.join(problems)}")
