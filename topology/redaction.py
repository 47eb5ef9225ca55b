"""Redaction rules for message content: header values by name, JSON values by path.

The rules are rows; this module applies them, purely. Every page, search and export that shows
content uses it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from django.db.models import Q

from topology import access
from topology.access import User
from topology.clients.conventions import built_in
from topology.content.json_tree import Tree, read_json, write_json
from topology.content.text import fits, is_encodable
from topology.message import Message
from topology.models import Broker, RedactionKind, RedactionRule
from topology.models.client_convention import Place, list_places

HIDDEN = "redacted"
LONGEST = 255
_STEP = re.compile(
    r"""\.\.(?=[^.\[\]])|\.?(?P<name>[^.\[\]'"]+)|\[(?:\*|'(?P<one>[^']+)'|"(?P<two>[^"]+)")\]"""
)
_INDEX = re.compile(r"\[\d+\]")
ANY_DEPTH = ".."
# Most “any depth” steps of a rule: each doubles what a path is compared with.
MOST_ANY_DEPTH = 4
# Longest body that is read for rules; longer ones, and those with more different paths, are hidden
# whole by any rule on bodies.
MASKED_BYTES = 65_536
MOST_PATHS = 4_000
# Name within x-death -> the header that it repeats, beside the routing key.
REPEATED = {"routing-keys": "cc"}
TOO_LONG = (
    f"The body exceeds {MASKED_BYTES // 1024} kB. With redaction rules for bodies, "
    "Delayboard redacts such a body completely."
)


class PatternError(ValueError):
    """The pattern of a rule is not valid; the message says why."""


class _TooManyPaths(Exception):
    """A document has more different paths than are looked at."""


@dataclass(frozen=True)
class Redaction:
    """Redaction rules: patterns of header names, and of paths in a JSON body.

    Names compare case-insensitively and `*` matches any characters. A path redacts a value with all
    its parts; `..` matches any number of names; lists count as their items, so `items[*].card` and
    `items.card` are the same.
    """

    header_patterns: tuple[str, ...] = ()
    body_paths: tuple[str, ...] = ()
    # Where conventions of the broker's operators find what groups and lists show.
    own_places: tuple[Place, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.header_patterns and not self.body_paths

    def hides_header(self, name: str) -> bool:
        """Also true for a name within x-death that repeats the value of a redacted header."""
        folded = name.casefold()
        names = (folded, REPEATED[folded]) if folded in REPEATED else (folded,)
        patterns = [pattern.casefold().split("*") for pattern in self.header_patterns]
        return any(fits(pattern, each) for pattern in patterns for each in names)

    def hides_body_path(self, path: str) -> bool:
        """Whether a rule hides the path: names joined by dots, such as `order.amount` or
        `items[0].card`.
        """
        plain = _INDEX.sub("", path).casefold()
        return any(
            fits(glob.split("*"), plain) for pattern in self.body_paths for glob in _globs(pattern)
        )

    def headers(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """The headers with HIDDEN in the place of what is hidden, also within tables."""
        return {name: self._header(name, value) for name, value in headers.items()}

    def message(self, message: Message) -> Message:
        """One with hidden headers, to be shown; its bytes are still the true ones."""
        properties = replace(message.properties, headers=self.headers(message.headers))
        return replace(message, properties=properties)

    def body(self, body: bytes, most: int = MASKED_BYTES) -> bytes:
        """The body with HIDDEN in place of redacted values, every other value as written.

        A body that is not a JSON object or list is redacted completely, because its parts are
        unknown; so is one with more than `most` bytes or MOST_PATHS, because it would take too
        long.
        """
        if not self.body_paths or not body:
            return body
        tree = read_json(body) if len(body) <= most else None
        try:
            if tree is not None:
                return write_json(self.tree(tree)).encode()
        except (RecursionError, _TooManyPaths):
            pass
        return HIDDEN.encode()

    def tree(self, tree: Tree) -> Tree:
        """A JSON document with HIDDEN in the place of what is hidden.

        Raises RecursionError and _TooManyPaths.
        """
        return self._tree(tree, "", {})

    def _tree(self, tree: Tree, path: str, known: dict[str, bool]) -> Tree:
        """`known` are the paths that were looked at before: those of a list's items are equal."""
        if path not in known:
            if len(known) == MOST_PATHS:
                raise _TooManyPaths
            known[path] = self.hides_body_path(path)
        if known[path]:
            return Tree("text", HIDDEN, name=tree.name)
        parts = [self._tree(part, _below(path, part), known) for part in tree.parts]
        return replace(tree, parts=tuple(parts))

    def _header(self, name: str, value: Any) -> Any:
        if self.hides_header(name):
            return HIDDEN
        if isinstance(value, Mapping):
            return self.headers(value)
        if isinstance(value, (list, tuple)):
            return [self._header("", item) for item in value]
        return value


NOTHING = Redaction()


@lru_cache(maxsize=1024)
def hides_fact(rules: Redaction, fact: str) -> bool:
    """Whether a rule redacts any place where a client library may state it."""
    places = [one.pointer for each in built_in() for one in each.facts.get(fact, ())]
    places += [pointer for name, pointer in rules.own_places if name == fact]
    return any(
        any(map(rules.hides_header, steps))
        if root == "headers"
        else any(rules.hides_body_path(".".join(steps[:end])) for end in range(1, len(steps) + 1))
        for root, *steps in places
    )


def rules_for(user: User, broker: Broker) -> Redaction:
    """What this person may not see of the messages of this broker."""
    return rules_by_broker(user, [broker])[broker.pk]


def rules_by_broker(user: User, brokers: Collection[Broker]) -> dict[int, Redaction]:
    """The same for each of several brokers, by their ids; in three queries at most."""
    roles = access.roles_for(user, brokers)
    rules = RedactionRule.objects.filter(Q(broker=None) | Q(broker__in=list(roles))).order_by("pk")
    rows = list(rules.values_list("broker", "kind", "pattern", "least_role"))
    places: dict[int, list[Place]] = {}
    for broker, place in list_places(list(roles)) if rows else ():
        places.setdefault(broker, []).append(place)
    return {
        pk: _redaction(
            [
                (kind, pattern)
                for where, kind, pattern, least in rows
                if where in (None, pk) and least > (role or 0)
            ],
            places.get(pk, []),
        )
        for pk, role in roles.items()
    }


def _redaction(rules: Sequence[tuple[str, str]], places: Sequence[Place]) -> Redaction:
    """The redaction of rules as (kind, pattern)."""
    if not rules:
        return NOTHING
    patterns: dict[str, list[str]] = {kind: [] for kind in RedactionKind.values}
    for kind, pattern in rules:
        patterns[kind].append(pattern)
    headers, bodies = (tuple(patterns[kind]) for kind in (RedactionKind.HEADER, RedactionKind.BODY))
    return Redaction(headers, bodies, tuple(dict.fromkeys(places)))


def check_pattern(kind: str, pattern: str) -> str:
    """The pattern without spaces around it. Raises PatternError."""
    pattern = pattern.strip()
    if not pattern:
        raise PatternError("Enter the name of a header or the path of a value.")
    if len(pattern) > LONGEST or not is_encodable(pattern):
        raise PatternError(f"A pattern has at most {LONGEST} characters, all encodable.")
    if kind == RedactionKind.BODY:
        path_steps(pattern)
    return pattern


def path_steps(pattern: str) -> tuple[str, ...]:
    """The names of a path, without `$` and lists; none of them for `$`: the whole body.

    Raises PatternError.
    """
    rest = pattern.strip().removeprefix("$")
    steps, place = [], 0
    while place < len(rest):
        found = _STEP.match(rest, place)
        if found is None:
            raise PatternError(
                f"“{pattern}” is not a valid path from “{rest[place:]}” on. Write "
                "customer.email, items[*].card, or ..email for any depth."
            )
        name = found["name"] or found["one"] or found["two"]
        if name or found[0] == ANY_DEPTH:
            steps.append(name or ANY_DEPTH)
        place = found.end()
    if steps.count(ANY_DEPTH) > MOST_ANY_DEPTH:
        raise PatternError(f"A path can contain “..” at most {MOST_ANY_DEPTH} times.")
    return tuple(steps)


@lru_cache(maxsize=512)
def _globs(pattern: str) -> tuple[str, ...]:
    """The path itself and all below it. A row that cannot be read hides everything."""
    try:
        steps = path_steps(pattern)
    except PatternError:
        steps = ()
    if not steps:
        return ("*",)
    globs = [""]
    for step in steps:
        if step == ANY_DEPTH:
            globs += [glob + "*." for glob in globs]
        else:
            globs = [glob + step.casefold() + "." for glob in globs]
    return tuple(form for glob in globs for form in (glob[:-1], glob + "*"))


def _below(path: str, part: Tree) -> str:
    """The path of a member; the items of a list have that of their list."""
    if part.name is None:
        return path
    return f"{path}.{part.name}" if path else part.name
