"""Retry loops in a vhost, found by their dead-letter exchanges and bindings, whatever their names.

A queue without a TTL whose dead-letter exchange leads to queues with one, whose own dead-letter
exchange, a fanout, leads back to the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from topology.definitions import Binding, Definitions, Queue
from topology.patterns.pattern import ParamsError
from topology.patterns.retry_loop.params import (
    EXCHANGE_TYPES,
    MOST_TIMEOUTS,
    Params,
    Timeout,
)

_SPLITS = {kind: split for split, kind in EXCHANGE_TYPES.items()}


@dataclass(frozen=True)
class Branch:
    """A binding into a queue whose messages die of age."""

    binding: Binding
    queue: Queue


@dataclass(frozen=True)
class Loop:
    """A loop by the names of its parts; `back` is where its dead queues send what is due.

    `branches` lead from the dead exchange, `unmatched` from the one for what takes none of them.
    """

    work: str
    input_exchange: str
    dead_exchange: str
    back: str
    split: str
    branches: tuple[Branch, ...]
    unmatched: Branch | None = None


Branches: TypeAlias = Mapping[str, Sequence[Branch]]


@dataclass(frozen=True)
class _Vhost:
    """The objects of a vhost. Answers are cached: thousands of queues may share one exchange."""

    found: Definitions
    _branches: dict[str, Branches] = field(default_factory=dict)
    _bare: dict[str, Sequence[Queue]] = field(default_factory=dict)

    def is_fanout(self, name: str) -> bool:
        exchange = self.found.exchange(name)
        return exchange is not None and exchange.type == "fanout"

    def leads_nowhere(self, name: str) -> bool:
        """Whether it is missing, or a fanout exchange without bindings."""
        if self.found.exchange(name) is None:
            return True
        return self.is_fanout(name) and not self.found.leaving(name)

    def fanouts_into(self, queue: str) -> list[str]:
        return [name for name in self.found.sources(queue) if self.is_fanout(name)]

    def branches(self, exchange: str) -> Branches:
        """The bindings of it into queues whose messages die of age, by where they die into."""
        if exchange not in self._branches:
            branches: dict[str, list[Branch]] = defaultdict(list)
            for binding in self.found.leaving(exchange):
                queue = self.found.queue(binding.destination)
                if not binding.destination_is_queue or queue is None or not queue.message_ttl_ms:
                    continue
                if (back := _dead_letter_exchange(queue)) not in ("", exchange):
                    branches[back].append(Branch(binding, queue))
            self._branches[exchange] = branches
        return self._branches[exchange]

    def unbound_queues(self, back: str) -> Sequence[Queue]:
        """The queues that nothing is bound to and whose messages die of age into this exchange."""
        if back not in self._bare:
            dying = self.found.dying_into(back)
            self._bare[back] = [
                queue
                for queue in dying
                if queue.message_ttl_ms
                and _dead_letter_exchange(queue)
                and not self.found.sources(queue.name)
            ]
        return self._bare[back]


def find_loops(found: Definitions) -> list[Loop]:
    """One for each input queue at most, by its name."""
    vhost = _Vhost(found.without_taps())
    works = [
        q
        for q in vhost.found.queues
        if _dead_letter_exchange(q) and "x-message-ttl" not in q.arguments
    ]
    loops = (
        _find_whole(vhost, work)
        or _find_without_entry(vhost, work)
        or _find_without_return(vhost, work)
        for work in sorted(works, key=lambda queue: queue.name)
    )
    return [loop for loop in loops if loop is not None]


def params_of(found: Definitions, loop: Loop) -> Params | None:
    """Parameters that make a loop of these names and times; None when there are none."""
    rest = loop.branches[0] if loop.split == "none" else loop.unmatched
    try:
        return Params(
            loop.input_exchange,
            loop.work,
            loop.dead_exchange,
            rest.queue.name if rest else "",
            (rest and rest.queue.message_ttl) or timedelta(0),
            _preset(found, loop),
            loop.back if loop.back != loop.input_exchange else "",
            loop.split,
            _header_of(loop.branches[0].binding) if loop.split == "header" else "",
            tuple(_timeout(loop, branch) for branch in loop.branches if loop.split != "none"),
            loop.unmatched.binding.source if loop.unmatched else "",
            _binding_keys(found, loop),
        )
    except ParamsError:
        return None


def _preset(found: Definitions, loop: Loop) -> str:
    """The remaining exchanges show whether they are transient."""
    left = filter(None, map(found.exchange, (loop.back, loop.dead_exchange)))
    return "durable" if all(exchange.durable for exchange in left) else "article"


def _binding_keys(found: Definitions, loop: Loop) -> str:
    into = found.leads(loop.back, loop.work) or [branch.binding for branch in loop.branches]
    return "queue" if into[0].routing_key == into[0].destination else "empty"


def _find_whole(vhost: _Vhost, work: Queue) -> Loop | None:
    dead = vhost.found.exchange(_dead_letter_exchange(work))
    if dead is None or dead.type not in _SPLITS:
        return None
    branches = vhost.branches(dead.name)
    back = next((name for name in vhost.fanouts_into(work.name) if name in branches), None)
    if back is None or len(branches[back]) > MOST_TIMEOUTS:
        return None
    split = _SPLITS[dead.type]
    alternate = dead.arguments.text("alternate-exchange") or ""
    rest = vhost.branches(alternate).get(back) if vhost.is_fanout(alternate) else None
    return Loop(
        work.name,
        _input_exchange(vhost, work.name, back, {dead.name, alternate}),
        dead.name,
        back,
        split,
        tuple(branches[back][:1] if split == "none" else branches[back]),
        rest[0] if rest and split != "none" else None,
    )


def _input_exchange(vhost: _Vhost, work: str, back: str, others: Collection[str]) -> str:
    """Another fanout than the one it comes back through, if that one leads to this queue alone."""
    into = [name for name in vhost.fanouts_into(work) if name not in {back, *others}]
    returns = vhost.found.leaving(back)
    return into[0] if into and all(one.destination == work for one in returns) else back


def _find_without_entry(vhost: _Vhost, work: Queue) -> Loop | None:
    """The dead exchange is missing or unbound, and only one unbound queue would return messages."""
    if not vhost.leads_nowhere(_dead_letter_exchange(work)):
        return None
    waiting = [
        queue for back in vhost.fanouts_into(work.name) for queue in vhost.unbound_queues(back)
    ]
    return _make_incomplete(vhost, work, waiting[0]) if len(waiting) == 1 else None


def _find_without_return(vhost: _Vhost, work: Queue) -> Loop | None:
    """Waiting messages return to a missing or unbound exchange that no other queue uses."""
    dead = _dead_letter_exchange(work)
    if not vhost.is_fanout(dead) or len(vhost.found.dying_into(dead)) != 1:
        return None
    branches = [branch for branches in vhost.branches(dead).values() for branch in branches]
    if len(branches) != 1 or not vhost.leads_nowhere(_dead_letter_exchange(branches[0].queue)):
        return None
    return _make_incomplete(vhost, work, branches[0].queue)


def _make_incomplete(vhost: _Vhost, work: Queue, waiting: Queue) -> Loop:
    dead, back = _dead_letter_exchange(work), _dead_letter_exchange(waiting)
    branch = Branch(Binding(dead, waiting.name, ""), waiting)
    return Loop(
        work.name, _input_exchange(vhost, work.name, back, {dead}), dead, back, "none", (branch,)
    )


def _dead_letter_exchange(queue: Queue) -> str:
    """Its dead-letter exchange; "" for the default one, which leads by name, and for streams."""
    return queue.dead_letter_exchange or "" if queue.type in ("classic", "quorum") else ""


def _timeout(loop: Loop, branch: Branch) -> Timeout:
    """A binding by no header, by several or by one of another kind gives an empty value."""
    match = branch.binding.routing_key
    if loop.split == "header":
        match = branch.binding.arguments.text(_header_of(branch.binding)) or ""
    return Timeout(match, branch.queue.message_ttl or timedelta(0), branch.queue.name)


def _header_of(binding: Binding) -> str:
    """The one header that the binding matches; "" when it matches none or several."""
    names = [name for name in binding.arguments if name != "x-match"]
    return names[0] if len(names) == 1 else ""
