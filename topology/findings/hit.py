"""What a rule reports of one object, how bad that is, and the commands of its remedy.

The commands are to copy, as a shell reads them; VHOST is set by a line before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from shlex import quote
from typing import Self
from urllib.parse import quote as url_quote
from urllib.parse import urlsplit

from topology.definitions import (
    Arguments,
    ArgumentValue,
    Binding,
    BrokerObject,
    Exchange,
    Identity,
    Queue,
)

# Words that a person has to replace.
VIRTUAL_HOST, TARGET_QUEUE, TARGET_KEY = "VIRTUAL_HOST", "TARGET_QUEUE", "TARGET_KEY"
MAXIMUM_LENGTH, TIME_TO_LIVE = "MAXIMUM_LENGTH", "TIME_TO_LIVE"
NUMBERS = (MAXIMUM_LENGTH, TIME_TO_LIVE)
_BLANKS: Mapping[str, str] = {
    VIRTUAL_HOST: "the name of the virtual host",
    TARGET_QUEUE: "the name of the queue that gets these messages",
    TARGET_KEY: "the routing key of these messages",
    MAXIMUM_LENGTH: "the number of messages that the queue can hold, such as 100000",
    TIME_TO_LIVE: "the milliseconds that a message waits, such as 30000",
}
LONGEST_NAME_BYTES = 255
_DELETE = 'rabbitmqctl delete_queue -p "$VHOST"'
# First version without the rabbitmqadmin in Python
# (https://github.com/rabbitmq/rabbitmq-server/pull/15219).
SECOND_SYNTAX = (4, 3)


@dataclass(frozen=True)
class Evidence:
    """One object with the setting that is wrong; `set_by` says who sets it, "" for nobody.

    `sentence` says what happens at this object.
    """

    object: Identity
    argument: str
    value: str
    set_by: str
    sentence: str


@dataclass(frozen=True)
class Hit:
    """What one rule finds at one object. Hits with one `cause` are one finding.

    `commands` are what to run ("" for what only the page can do), with words in capitals for what
    a person has to choose. `unless` completes the sentence where it depends on what the definitions
    do not show: then the hit is a note, without commands. `severity` and `remedy` are the rule's
    where they are not stated.
    """

    cause: str
    evidence: Evidence
    commands: tuple[str, ...] = ()
    unless: str = ""
    severity: Severity | None = None
    remedy: str = ""


class Severity(IntEnum):
    """What happens to messages, the worst last.

    Refused: RabbitMQ does not take the object, and of a file of definitions nothing after it.
    Timing: a message arrives early, late or twice. Style is a note: nothing goes wrong as long as
    the broker and the consumers work, or it depends on the messages whether something does.
    """

    STYLE = 1
    COST = 2
    TIMING = 3
    STUCK = 4
    LOSS = 5
    REFUSED = 6

    @property
    def key(self) -> str:
        return self.name.lower()

    @property
    def level(self) -> str:
        """The severity as SARIF names it."""
        return {1: "note", 2: "warning", 3: "warning"}.get(self, "error")

    @property
    def label(self) -> str:
        return self.name.capitalize()


@dataclass(frozen=True)
class Count:
    """The number of findings of a severity; `key` is its name in an address, `mark` its shape and
    colour among the site's states.
    """

    key: str
    label: str
    mark: str
    number: int


def make_count(severity: Severity, number: int) -> Count:
    mark = severity.level.replace("warning", "warn")
    return Count(severity.key, severity.label, mark, number)


def make_counts(numbers: Mapping[Severity, int]) -> list[Count]:
    """The worst severity first."""
    return [make_count(severity, numbers[severity]) for severity in sorted(numbers, reverse=True)]


def describe_blanks(commands: Iterable[str]) -> str:
    """What a person has to insert in them, a sentence; "" for nothing."""
    text = " ".join(commands)
    found = [f"{word} with {meaning}" for word, meaning in _BLANKS.items() if word in text]
    return f"Replace {', and '.join(found)}." if found else ""


def name_dead_letter_queue(name: str) -> str:
    """A name for a dead-letter queue of this queue or exchange; a blank where none is possible."""
    made = f"{name}-dead-letters"
    return made if len(made.encode()) <= LONGEST_NAME_BYTES else TARGET_QUEUE


def insert_vhost(command: str, name: str) -> str:
    """The same command without the variable."""
    return command.replace('"$VHOST"', quote(name))


@dataclass(frozen=True)
class Policy:
    """A policy for one queue; its `definition` has RabbitMQ's keys, such as "overflow".

    `over` names the policy that holds for the queue now, "" for none. Its other settings are kept,
    but for those `removed`.
    """

    name: str
    queue: str
    pattern: str
    definition: Arguments
    over: str = ""
    removed: tuple[str, ...] = ()


class Declaration(str):
    """A command that declares one object."""

    object: BrokerObject

    def __new__(cls, command: str, obj: BrokerObject) -> Self:
        made = super().__new__(cls, command)
        made.object = obj
        return made


class Replacement(str):
    """A command that replaces something as a whole, such as a queue; `target` names it.

    Either `policy` is what it sets, or `wanted` is declared in place of what has its name. The
    command is "" where none does it safely: none checks that a quorum queue is empty, and none
    knows the priority of another policy.
    """

    target: str
    policy: Policy | None
    wanted: Exchange | Queue | None

    def __new__(
        cls,
        command: str,
        target: str,
        policy: Policy | None = None,
        wanted: Exchange | Queue | None = None,
    ) -> Self:
        made = super().__new__(cls, command)
        made.target, made.policy, made.wanted = target, policy, wanted
        return made


def name_tool(commands: Iterable[str], admin: Admin, options: str = "") -> str:
    """Which rabbitmqadmin they are for, with which options if known; "" where they need none."""
    if not any("rabbitmqadmin" in command for command in commands):
        return ""
    with_ = f"the options {options}" if options else "the address and account"
    syntax = f"the syntax is that of {admin.tool}"
    return f"Run rabbitmqadmin with {with_} of the management API: {syntax}."


def warn_about(commands: Iterable[str]) -> str:
    """What to do before them; "" for nothing."""
    if not any(_DELETE in command for command in commands):
        return ""
    stop = "Before you run these commands, stop all publishers of this queue."
    return f"{stop} RabbitMQ drops their messages until the queue is declared again."


def set_vhost(name: str) -> str:
    """The export of one virtual host does not name it."""
    return f"VHOST={quote(name) if name else VIRTUAL_HOST}"


@dataclass(frozen=True)
class Admin:
    """Commands of the rabbitmqadmin that belongs to a broker of this version; () if not known."""

    version: tuple[int, ...]

    @property
    def tool(self) -> str:
        if self._is_second:
            return "rabbitmqadmin 2"
        return "the rabbitmqadmin in Python that this broker serves at /cli/rabbitmqadmin"

    def connect(self, url: str, account: str) -> str:
        """The options that lead to a management API; the password is not among them."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        given = {"host": parts.hostname or "", "port": str(port), "username": account}
        options = [f"--{name}={quote(value)}" for name, value in given.items()]
        tls = "--use-tls" if self._is_second else "--ssl"
        return " ".join([*options, tls] if is_tls else options)

    def declare_exchange(self, name: str, kind: str = "direct") -> Declaration:
        command = self._command("declare", "exchange", name=name, type=kind, durable="true")
        return Declaration(command, Exchange(name, kind))

    def declare_queue(self, queue: Queue) -> Declaration:
        """A classic one; the type is stated, as the virtual host may have another default."""
        given = {k: v for k, v in queue.arguments.items() if k != "x-queue-type"}
        type_key = "type" if self._is_second else "queue_type"
        durable = json.dumps(queue.durable)
        values = {"name": queue.name, type_key: "classic", "durable": durable, **_json(given)}
        if queue.auto_delete:
            values["auto_delete"] = "true"
        arguments = Arguments({**given, "x-queue-type": "classic"})
        declared = replace(queue, arguments=arguments)
        return Declaration(self._command("declare", "queue", **values), declared)

    def restore(self, binding: Binding) -> Declaration:
        given = {"routing_key": binding.routing_key, **_json(binding.arguments)}
        command = self._binding("declare", binding.source, binding.destination, **given)
        return Declaration(command, binding)

    def bind(self, source: str, queue: str = TARGET_QUEUE, key: str = TARGET_KEY) -> Declaration:
        return self.restore(Binding(source, queue, key))

    def unbind(self, source: str, queue: str, key: str) -> str:
        """A binding without arguments."""
        if self._is_second:
            return self._binding("delete", source, queue, routing_key=key)
        # The name that the management API gives a binding.
        return self._binding("delete", source, queue, properties_key=url_quote(key, "") or "~")

    @property
    def _is_second(self) -> bool:
        return not self.version or self.version >= SECOND_SYNTAX

    def _binding(self, verb: str, source: str, queue: str, **key: str) -> str:
        end = {"destination_type": "queue", "destination": queue}
        return self._command(verb, "binding", source=source, **end, **key)

    def _command(self, verb: str, kind: str, **values: str) -> str:
        if self._is_second:
            # With the sign, a text that begins with a hyphen is no option.
            names = (f"--{name.replace('_', '-')}={quote(text)}" for name, text in values.items())
        else:
            names = (f"{name}={quote(text)}" for name, text in values.items())
        return " ".join(['rabbitmqadmin --vhost "$VHOST"', verb, kind, *names])


def _json(arguments: Mapping[str, ArgumentValue]) -> dict[str, str]:
    return {"arguments": json.dumps(dict(arguments), ensure_ascii=False)} if arguments else {}


def delete_queue(name: str) -> str:
    """RabbitMQ refuses it for quorum queues, and for a queue with messages or consumers."""
    return f"{_DELETE} {quote(name)} --if-empty --if-unused"


def list_consumers(name: str) -> str:
    columns = "queue_name consumer_tag channel_pid"
    return f'rabbitmqctl list_consumers -p "$VHOST" {columns} | grep -F -e {quote(name)}'


def set_policy(
    name: str, queue: str, stated: Mapping[str, ArgumentValue | None], over: str = ""
) -> Replacement:
    """A policy for one queue; None removes a setting of the policy that it takes the place of."""
    pattern = f"^{re.escape(queue)}$"
    definition = Arguments({key: value for key, value in stated.items() if value is not None})
    removed = tuple(key for key, value in stated.items() if value is None)
    policy = Policy(name, queue, pattern, definition, over, removed)
    if over:
        return Replacement("", f"policy {name}", policy)
    given = json.dumps(dict(definition), ensure_ascii=False)
    # A number that a person has to choose is no text.
    for number in NUMBERS:
        given = given.replace(f'"{number}"', number)
    command = (
        f'rabbitmqctl set_policy -p "$VHOST" {quote(name)} {quote(pattern)} {quote(given)} '
        "--apply-to queues"
    )
    return Replacement(command, f"policy {name}", policy)
