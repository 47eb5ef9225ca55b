"""What every pattern offers; the list of patterns is `topology.patterns.table.PATTERNS`."""

from __future__ import annotations

import json
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, lru_cache
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any, Literal

from topology.definitions import Binding, Definitions, Identity, Queue, is_tap
from topology.delays import format_delay, milliseconds
from topology.message import Forwarder, Route
from topology.patterns.queue_types import explain_limit
from topology.patterns.uses import find_missing
from topology.structure.chain import Chain
from topology.structure.copies import Copy, Reading, Tap
from topology.structure.find_chains import is_delay, make_chain
from topology.structure.reading import Reader
from topology.structure.taps import place_taps

# Target with which a topology without targets is tried.
MADE_UP = "delayboard-probe"
# Names that the modules of a pattern's folder give to its class.
PARTS = {"KIND", "FIELDS", "parse", "store", "definitions", "derive"}

# Who counts the attempts of a failed message: RabbitMQ by x-death, the consumer in a header of its
# own, or the work queue, in which the message also waits. "" where failed messages do not wait.
Attempts = Literal["", "x-death", "consumer", "queue"]


class ParamsError(ValueError):
    """Parameters that do not describe a valid topology.

    `problems` maps the name of a parameter to a sentence; the key "" is for all of them together.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True)
class Field:
    """A parameter as a field of a form; `choices` are (value, words), none for free text.

    A `rare` field is folded. One with `only_for` applies only where the field of that name has one
    of the values; the parameters refuse an empty one for those in `required_for`.
    """

    name: str
    label: str
    help: str
    initial: str = ""
    required: bool = True
    choices: tuple[tuple[str, str], ...] = ()
    rare: bool = False
    only_for: tuple[str, tuple[str, ...]] = ("", ())
    required_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Use:
    """A use of a pattern found by structure in definitions, with the objects it claims.

    `missing` are sentences on objects of a complete one that do not exist, `remarks` other notes
    for people. `params` is None when no parameters would create it again, names included: then it
    can be shown but not managed.
    """

    kind: str
    name: str
    params: Any
    claims: frozenset[Identity]
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What a person must know before using a pattern: one or two sentences each."""

    title: str
    summary: str
    mechanism: str
    guarantee: str
    cost: str
    hazards: tuple[str, ...]
    source: str


def too_long(kind: str, longest: timedelta) -> ParamsError:
    """The problem of a delay over the longest of this kind of topology."""
    return ParamsError(
        {
            "delay": (
                f"The longest delay of {kind} is {format_delay(longest)}. Enter a shorter delay."
            )
        }
    )


def refuse_unless_offered(delay: timedelta, offered: Sequence[timedelta]) -> None:
    """Raises ParamsError."""
    if delay not in offered:
        available = ", ".join(map(format_delay, offered))
        raise ParamsError({"delay": f"The available delays are {available}."})


class Code(str):
    """A piece of code, not a text to quote."""


def write_code(value: Any) -> str:
    return value if isinstance(value, Code) else json.dumps(value, ensure_ascii=False)


@cache
def read_texts(module: str) -> dict[str, Any]:
    """texts.toml in the folder of this module's file."""
    return tomllib.loads(Path(module).with_name("texts.toml").read_text(encoding="utf-8"))


class Pattern(ABC):
    """One way to delay, pure. A default below is that of a pattern with a single work queue."""

    def __init_subclass__(cls, parts: Sequence[ModuleType] = ()) -> None:
        """`parts` are modules of the pattern's folder: it has what they define of PARTS."""
        for module in parts:
            for name in PARTS & vars(module).keys():
                found = vars(module)[name]
                setattr(cls, name, staticmethod(found) if callable(found) else found)
        if parts:
            file = str(parts[0].__file__)
            texts = read_texts(file)["explanation"]
            cls.EXPLANATION = Explanation(**texts | {"hazards": tuple(texts["hazards"])})
            cls.CODE = Template(Path(file).with_name("example.txt").read_text(encoding="utf-8"))

    KIND: str
    EXPLANATION: Explanation
    CODE: Template
    FIELDS: tuple[Field, ...]
    EXAMPLE: Any
    """Parameters to draw and explain it with."""

    IS_CREATED = True
    """Whether Delayboard creates it; else what others created is shown, verified and removed."""

    ATTEMPTS_COUNTED_BY: Attempts = ""

    KEYS_DIFFER_BY_DELAY = False
    """Whether messages leave with the routing key of their publish, which has their delay."""

    CHANGE_OBSTACLE = "Delayboard cannot change single messages of this pattern."
    """Why no single message can be cancelled or get another time; "" where one can."""

    OFFERS_MIGRATION = False
    """Whether its waiting messages can be moved to delay levels, or a page says why not."""

    parse: Callable[[Mapping[str, str]], Any]
    """Parameters from texts as a form or the database has them. Raises ParamsError."""

    store: Callable[[Any], dict[str, str]]
    """The inverse of `parse`."""

    definitions: Callable[[Any], Definitions]

    @staticmethod
    def derive(queues: Sequence[Queue], found: Definitions) -> Iterable[Mapping[str, Any]]:
        """The parameters with which it could have declared some of these delay queues of a vhost.

        `queues` have one dead-letter exchange. Values that the parameters refuse are ignored.
        """
        return ()

    def recognize(self, found: Definitions) -> Sequence[Use]:
        """The uses of the pattern in a virtual host, by name, with the derived parameters that
        differ least.
        """
        uses: dict[str, Use] = {}
        for params in dict.fromkeys(self._derive_all(found)):
            use = self._compare(params, found)
            known = uses.get(use.name)
            if known is None or len(use.missing) < len(known.missing):
                uses[use.name] = use
        return [uses[name] for name in sorted(uses)]

    def _derive_all(self, found: Definitions) -> Iterator[Any]:
        for _, dying in sorted(found.dying.items()):
            delays = [queue for queue in dying if is_delay(queue)]
            for values in self.derive(delays, found) if delays else ():
                with suppress(ParamsError):
                    yield type(self.EXAMPLE)(**values)

    def _compare(self, params: Any, found: Definitions) -> Use:
        own = (*self.definitions(params), *self.members(params, found))
        bound = self.destinations(params, found) or ()
        claims = frozenset(one.identity for one in (*own, *bound) if found.get(one.identity))
        missing = self.list_missing(params, found)
        return Use(
            self.KIND, self.title(params), params, claims, missing, self.doubts(params, found)
        )

    def list_missing(self, params: Any, found: Definitions) -> tuple[str, ...]:
        """What a use with these parameters lacks in this vhost: one sentence each."""
        return find_missing(self.definitions(params), found)

    def doubts(self, params: Any, found: Definitions) -> tuple[str, ...]:
        """What else is said of a use that was found in this vhost: one sentence each."""
        return ()

    def title(self, params: Any) -> str:
        """The name of a use; two of one kind and title exclude each other."""
        return self.targets(params)[0]

    def obstacle(self, version: tuple[int, ...], params: Any = None) -> str:
        """Why a broker of this version cannot hold it, with these parameters if they are given;
        "" if it can. An unknown version is the newest."""
        return explain_limit(self.definitions(params).queues, version) if params else ""

    @abstractmethod
    def route(self, params: Any, delay: timedelta, target: str) -> Route:
        """What to declare and publish so that a message arrives at `target` after `delay`.

        Raises ParamsError with the problem of "delay" or "target" when there is no route.
        """

    def achievable(self, params: Any, delay: timedelta) -> timedelta:
        """The delay that `route` really gives for the requested one."""
        return max(timedelta(0), timedelta(milliseconds=milliseconds(delay)))

    def waits(self, params: Any, delay: timedelta) -> Sequence[timedelta]:
        """The waits of a message with this delay, in their order; their sum is `achievable`."""
        return [self.achievable(params, delay)] if delay > timedelta(0) else []

    def delays(self, params: Any) -> Sequence[timedelta]:
        """The delays on offer; empty when any up to a maximum can be had."""
        return ()

    def describe_no_delay(self, params: Any) -> str:
        """Why zero is the only delay on offer, in a few words."""
        return "retries, no delay of new messages"

    def longest(self, params: Any) -> timedelta:
        """The longest delay that can be had."""
        return max(self.delays(params))

    def rounds(self, params: Any) -> int | None:
        """How many retries there are; None where the topology does not limit them."""
        return None

    def longest_retry(self, params: Any) -> timedelta:
        """How long a failed message waits in it until it is a dead letter; 0 when unknown."""
        return self.longest(params)

    def targets(self, params: Any) -> Sequence[str]:
        """Where delayed messages may go, by default to the work queue; empty when it is free."""
        return (params.name,)

    def binds_again(self, params: Any) -> str:
        """When a program binds a destination again, such as “a worker starts”; "" for never."""
        return ""

    def is_held(self, params: Any) -> bool:
        """Whether consumers take messages before they are due, and hold them until then."""
        return False

    def change_obstacle(self, params: Any) -> str:
        """CHANGE_OBSTACLE, or that of a use with these parameters."""
        return self.CHANGE_OBSTACLE

    def exit_of(self, params: Any, destination: str) -> tuple[str, str]:
        """The exchange and key with which messages for a destination leave the delays."""
        return "", destination

    def destinations(self, params: Any, found: Definitions) -> Sequence[Binding] | None:
        """The bindings in `found` that lead to its targets; None where a target needs none."""
        return None

    def members(self, params: Any, found: Definitions) -> Sequence[Queue]:
        """Queues of it in `found` that come and go with use, beside its definitions."""
        return ()

    def delay_queues(self, params: Any, found: Iterable[Queue]) -> list[Queue]:
        """Those of these queues of the pattern that messages leave when their delay ends."""
        return [queue for queue in found if queue.message_ttl_ms is not None]

    def target_problem(self, params: Any, target: str, found: Definitions) -> str:
        """Why messages for this target would go astray in this vhost; "" when they would not."""
        work = self.targets(params)[0]
        if is_tap(target):
            return "Delayboard uses this queue as a tap. Enter another queue."
        if target != work:
            return (
                f"Messages of this topology always go to {work}. Enter {work}, or leave the field "
                "empty."
            )
        return ""

    def trials(self, params: Any, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        """What to try it with: delay, target, and the queue (may be made up) to arrive in."""
        work = self.targets(params)[0]
        return [(delay, work, work) for delay in self.delays(params)]

    def untried(self, params: Any, found: Definitions) -> Sequence[str]:
        """What `trials` leaves out, and why: one sentence each."""
        if self.trials(params, found):
            return ()
        return ("No route was traced, because the topology defines none to its end.",)

    def probe_obstacle(self, params: Any, found: Definitions) -> str:
        """Why no probe can take the way of its messages past real consumers; "" when one can."""
        work = self.targets(params)[0]
        return (
            f"Probes are not available, because every delay of this topology ends in {work}, "
            "where a consumer would receive them."
        )

    def probe_bindings(self, params: Any, probe: str) -> Sequence[Binding]:
        """What leads probes into the queue `probe` and nothing else; their key is its name."""
        return ()

    def probe_route(self, params: Any, delay: timedelta, probe: str) -> Route:
        """What to declare and publish so that a probe arrives after `delay`. Raises ParamsError."""
        return self.route(params, delay, probe)

    def remarks(self, params: Any, found: Definitions) -> Sequence[str]:
        """Notes for people about its use in this vhost: one sentence each."""
        return ()

    def chain(self, params: Any) -> Chain:
        """The delay queues as structure finds them, with the queues that the chain only names."""
        declared = self.definitions(params)
        ends = [Queue(name) for name in self.targets(params) if declared.queue(name) is None]
        waits = [queue.name for queue in self.delay_queues(params, declared.queues)]
        return make_chain(self.KIND, waits, declared | Definitions.of(ends))

    def read(self, params: Any, copy: Copy) -> Reading | None:
        """What a tapped copy means; None when it is none of this topology's."""
        return _read_by(self, params).read(copy)

    def taps(self, params: Any) -> Sequence[Tap]:
        """None where no exchange sees what passes."""
        return _taps_of(self, params)

    def forwarders(self, params: Any) -> Sequence[Forwarder]:
        """The consumers of ours without which no message comes through."""
        return ()

    def consumer_example(self, params: Any) -> str:
        """The few lines of pika that a consumer or publisher needs."""
        values = self.code_values(params).items()
        return self.CODE.substitute({name: write_code(value) for name, value in values})

    @abstractmethod
    def code_values(self, params: Any) -> Mapping[str, Any]:
        """The values in its example.txt, which are quoted unless they are `Code`."""


@lru_cache(maxsize=256)
def _read_by(pattern: Pattern, params: Any) -> Reader:
    return Reader(pattern.chain(params))


@lru_cache(maxsize=4096)
def _taps_of(pattern: Pattern, params: Any) -> Sequence[Tap]:
    return place_taps(_read_by(pattern, params).chain)
