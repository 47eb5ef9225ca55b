"""Publishes one message as the page Publish does, and waits for its arrival on request."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentTypeError
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import CONFLICT, UNPROCESSABLE_ENTITY
from pathlib import Path
from threading import Event
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser

from delayboard.forms.content import FORMATS
from delayboard.forms.publish import PublishForm
from delayboard.management.confirmation import add_confirmation, confirm_at, unconfirmed
from delayboard.management.publish_lines import publish_lines
from delayboard.models import Publication, PublishJob
from delayboard.models.publication import Sent
from delayboard.publishing import publish_job
from delayboard.publishing.publish_message import (
    OutgoingMessage,
    Prediction,
    find_observer,
    predict_message,
    send,
)
from delayboard.publishing.track import Track, track
from delayboard.worker.supervise import until_stopped
from topology import snapshots, work
from topology.broker.errors import Unreachable, alarm_sentence
from topology.broker.properties.field_values import FieldError
from topology.content.text import count_text
from topology.delays import DURATION_HELP, MOMENT_HELP, DelayError, parse_delay
from topology.forms.fields import HeadersField
from topology.management.command import command_error
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.server import PATIENCE_SECONDS, Refused, ServedCommand, Server
from topology.models import Broker, WorkState
from topology.models.work import ENDED
from topology.operations.ownership import Refusal

NOTHING = "Nothing was published. "
CHECK_SECONDS = 0.2
REPORT_SECONDS = 1.0
TEXTS = {
    "topology": "topology slug, as in its page's address",
    "delay": DURATION_HELP,
    "due-at": f"a time instead of a delay. {MOMENT_HELP}",
    "target": "destination, if the topology needs one",
    "broker": "broker slug, without a topology",
    "exchange": "empty for the default exchange",
    "routing-key": "of the message, without a topology",
    "content-type": "such as application/json",
    "headers": "a JSON object",
    "expiration": f"message TTL. {DURATION_HELP}",
    "message-id": "default: an id of Delayboard",
    "correlation-id": "id of the request that the message answers",
    "type": "kind of message, for its consumer",
}


class Command(ServedCommand):
    help = (
        "Publish one message, or with --count many, through a topology, or to an exchange of a "
        "broker; or with --file messages with due times of their own into delay levels "
        "(docs/timeouts.md). Exits with 0 when the broker confirmed all, with 3 when --wait ended "
        "before the delivery was observed, or lines of a file are not published, with 4 when a "
        "message is possibly published and its delivery was not observed, and with 1 when one is "
        "not published."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        for name, words in TEXTS.items():
            parser.add_argument(f"--{name}", default="", help=words)
        body = parser.add_mutually_exclusive_group()
        body.add_argument("--body", default="", help="the body as text")
        body.add_argument("--body-file", help="a file with the bytes of the body, - for stdin")
        kinds = [kind for kind, _ in FORMATS]
        parser.add_argument(
            "--body-format",
            choices=kinds,
            default="text",
            help="how the body is read; default: text",
        )
        parser.add_argument("--dry-run", action="store_true", help="only predict the route")
        parser.add_argument(
            "--wait", type=_read_duration, help=f"how long to wait for the arrival. {DURATION_HELP}"
        )
        parser.add_argument("--count", type=int, help="number of messages; Ctrl-C stops the job")
        parser.add_argument("--rate", type=float, help="messages per second of --count")
        parser.add_argument("--file", help="JSON lines, a message each")
        parser.add_argument(
            "--mapping", default="", help="how to read the lines of --file: nservicebus, or a file"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object per line")
        add_confirmation(parser)

    def work(self, options: Mapping[str, Any]) -> None:
        given = dict(options)
        if given["file"] is not None:
            _refuse_beside_file(given)
            publish_lines(given, partial(self._report, given))
            return
        form = PublishForm(_typed(given), brokers=Broker.objects.all())
        _check(form)
        broker, outgoing = form.chosen_broker, form.outgoing()
        known = snapshots.fresh(broker)
        if known.snapshot is None or known.error:
            raise command_error(Unreachable(known.error), NOTHING)
        is_many = given["count"] is not None or given["rate"] is not None
        if not form.check_target(known.snapshot.definitions) or (is_many and not form.check_many()):
            _check(form)
        prediction = predict_message(broker, known.snapshot, outgoing)
        observer = find_observer(broker, outgoing.topology, outgoing.target, prediction)
        self._report(given, "predicted", f"{prediction.sentence} {observer.sentence}")
        if given["dry_run"]:
            return
        if refusal := unconfirmed(broker, given):
            raise CommandError(f"{NOTHING}{refusal}")
        if known.snapshot.alarms:
            raise CommandError(f"{NOTHING}{alarm_sentence(known.snapshot.alarms)}")
        if is_many:
            if given["wait"] is not None:
                raise BadInput(f"{NOTHING}Use --wait without --count.")
            self._publish_many(form, outgoing, prediction, given)
            return
        try:
            row = send(AnonymousUser(), broker, outgoing, prediction)
        except FieldError as error:
            raise BadInput(f"{NOTHING}{error}") from error

        def follow() -> tuple[str, str]:
            seen = wait_for(row, given["wait"])
            return seen.mark, seen.sentence

        self._end(given, str(row.pk), Sent(row.sent), row.error, follow)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        given = dict(options)
        if given["file"] is not None:
            raise BadInput(f"{NOTHING}--server does not publish --file. Publish it on the host.")
        is_many = given["count"] is not None or given["rate"] is not None
        try:
            headers = HeadersField(required=False).clean(given["headers"])
        except ValidationError as error:
            raise _refuse([("headers", text) for text in error.messages]) from error
        typed = {name: value for name, value in _typed(given).items() if value not in ("", None)}
        body = typed | {"persistent": True, "headers": headers}
        try:
            predicted = server.post("publications", body, {"dry_run": "true"})
            self._report(given, predicted["state"], predicted["sentence"])
            if given["dry_run"]:
                return
            body["confirm"] = confirm_at(server, predicted["broker"], given, NOTHING)
            if is_many and given["wait"] is not None:
                raise BadInput(f"{NOTHING}Use --wait without --count.")
            row = server.post("publications", body)
        except Refused as error:
            if error.status != UNPROCESSABLE_ENTITY:
                raise
            raise _refuse(error.errors.items() or [("__all__", str(error))]) from error
        if is_many:
            self._follow_job(server, given, row)
            return

        def follow() -> tuple[str, str]:
            seconds = given["wait"].total_seconds()
            until = time.monotonic() + seconds
            try:
                seen = server.watch(
                    f"publications/{row['id']}",
                    "whether the message is delivered",
                    lambda one: one["is_settled"] or time.monotonic() >= until,
                    Event(),
                    patience=min(seconds, PATIENCE_SECONDS),
                )
            except CommandError as error:
                return "unknown", str(error)
            return seen["mark"], seen["sentence"]

        self._end(given, row["id"], Sent(row["state"]), row["error"], follow)

    def _follow_job(self, server: Server, given: dict[str, Any], job: dict[str, Any]) -> None:
        """Follow until the worker of the other Delayboard has ended the job; an interrupt
        stops it.
        """
        address, stop = f"publish-jobs/{job['id']}", until_stopped()
        self._report(given, "requested", f"The publish job {job['id']} is requested.")
        while job["state"] not in ENDED:
            if stop.wait(REPORT_SECONDS):
                stop.clear()
                try:
                    server.post(f"{address}/stop")
                except CommandError as error:
                    # It may have ended just now.
                    if not isinstance(error, Refused) or error.status != CONFLICT:
                        sentence = f"The publish job {job['id']} goes on. {error}"
                        raise CommandError(sentence, returncode=ExitCode.UNKNOWN) from error
            job = server.watch(
                address,
                f"how the publish job {job['id']} ends",
                lambda one: one["state"] in ENDED,
                stop,
                lambda one: self._report(given, "progress", _describe(one)),
            )
            self._report(given, "progress", _describe(job))
        self._end_job(given, job)

    def _end(
        self,
        given: dict[str, Any],
        key: str,
        sent: Sent,
        error: str,
        follow: Callable[[], tuple[str, str]],
    ) -> None:
        """Print the state of the message; `follow` waits for its arrival."""
        if sent == Sent.REFUSED:
            raise CommandError(f"The message is {sent.label}. {error}")
        is_confirmed = sent == Sent.CONFIRMED
        if is_confirmed:
            self._report(given, "published", f"The broker confirmed the message {key}.")
        else:
            self._report(given, "unknown", f"The message {key} is {Sent.UNKNOWN.label}. {error}")
        is_observed = False
        if given["wait"] is not None:
            mark, sentence = follow()
            self._report(given, mark, sentence)
            is_observed = mark == "arrived"
        if not is_confirmed and not is_observed:
            sys.exit(ExitCode.UNKNOWN)
        if given["wait"] is not None and not is_observed:
            sys.exit(ExitCode.PARTLY)

    def _publish_many(
        self,
        form: PublishForm,
        outgoing: OutgoingMessage,
        prediction: Prediction,
        given: dict[str, Any],
    ) -> None:
        """Do the job here; a worker continues it when this process is killed."""
        data, user = form.cleaned_data, AnonymousUser()
        try:
            job = publish_job.request_job(
                user,
                form.chosen_broker,
                outgoing,
                prediction,
                number=data["count"],
                rate=data["rate"],
            )
        except FieldError as error:
            raise BadInput(f"{NOTHING}{error}") from error
        except Refusal as error:
            raise command_error(error, NOTHING) from error
        self._report(given, "requested", f"The publish job {job.pk} is requested.")
        reported_at = time.monotonic()

        def alive() -> None:
            nonlocal reported_at
            if time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                job.refresh_from_db()
                self._report(given, "progress", _describe(publish_job.make_record(job)))

        _run(job, alive)
        self._end_job(given, publish_job.make_record(job))

    def _end_job(self, given: dict[str, Any], job: Mapping[str, Any]) -> None:
        self._report(given, job["state"], _describe(job))
        if job["state"] != WorkState.DONE or job["returned"]:
            raise CommandError(job["error"] or job["returned_why"] or "The job was stopped.")
        if job["unknown"]:
            sys.exit(ExitCode.UNKNOWN)

    def _report(self, given: dict[str, Any], state: str, sentence: str) -> None:
        found = {"state": state, "sentence": sentence}
        self.stdout.write(json.dumps(found, ensure_ascii=False) if given["json"] else sentence)


def _run(job: PublishJob, alive: Callable[[], None]) -> None:
    """Publish until the job has ended; an interrupt stops it."""
    owner = f"{work.name_process()} (command)"
    stop = until_stopped()
    while not job.work.is_ended:
        claimed = work.claim_this(job.work, owner)
        if claimed is not None:
            work.attempt(publish_job.attend, claimed, stop=stop, alive=alive)
        job.refresh_from_db()
        job.work.refresh_from_db()
        if stop.is_set():
            publish_job.stop_job(AnonymousUser(), job)
        elif not job.work.is_ended:
            stop.wait(CHECK_SECONDS)
            alive()


def _describe(job: Mapping[str, Any]) -> str:
    found = f"{count_text(job['published'])} of {count_text(job['number'])} messages are published"
    if job["returned"]:
        found += f", {count_text(job['returned'])} are not published"
    if job["unknown"]:
        found += f", {count_text(job['unknown'])} are possibly published"
    if job["returned"] or job["unknown"]:
        found += f": {job['returned_why'].removesuffix('.')}"
    if job["repeated"]:
        found += f", {count_text(job['repeated'])} may be duplicated"
    return found if found.endswith(".") else f"{found}."


def _read_duration(text: str) -> timedelta:
    """Raises ArgumentTypeError with a sentence."""
    try:
        return parse_delay(text)
    except DelayError as error:
        raise ArgumentTypeError(str(error)) from error


def wait_for(row: Publication, longest: timedelta) -> Track:
    """Where the message is when it arrived, or when this time is over."""
    until = time.monotonic() + longest.total_seconds()
    while True:
        seen = track(row, datetime.now(UTC))
        if seen.is_settled or time.monotonic() >= until:
            return seen
        time.sleep(CHECK_SECONDS)


def _refuse_beside_file(given: dict[str, Any]) -> None:
    """Raises BadInput with an option that the lines of a file decide."""
    options = [*TEXTS, "body", "body-file", "wait", "count"]
    given = {one: given[one.replace("-", "_")] for one in options if one != "topology"}
    if wrong := [one for one, value in given.items() if value not in ("", None)]:
        raise BadInput(f"{NOTHING}Use --{wrong[0]} without --file: each line states its own.")


def _typed(given: dict[str, Any]) -> dict[str, Any]:
    """The options as the form of the page posts them."""
    typed = {name: given[name] for name in (text.replace("-", "_") for text in TEXTS)}
    typed |= {"count": given["count"], "rate": given["rate"]}
    typed |= {"body": given["body"], "body_format": given["body_format"], "persistent": "1"}
    if given["body_file"] is not None:
        typed |= {"body": _read_file(given["body_file"]), "body_format": "base64"}
    return typed


def _read_file(name: str) -> str:
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise BadInput(f"{NOTHING}The file {name} was not read: {error.strerror}.") from error
    return b64encode(content).decode()


def _check(form: PublishForm) -> None:
    """Raises BadInput with what is wrong with each value."""
    if not form.is_valid():
        raise _refuse((name, str(text)) for name, texts in form.errors.items() for text in texts)


def _refuse(problems: Iterable[tuple[str, str]]) -> BadInput:
    """`problems` by the names of the form's fields."""
    named = (
        f"--{name.replace('_', '-')}: {text}" if name != "__all__" else text
        for name, text in problems
    )
    return BadInput(f"{NOTHING}{' '.join(named)}")
