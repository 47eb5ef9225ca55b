"""Topic binding keys of a retry loop: which share a key, and keys that match one or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count

from topology.patterns.names import LONGEST_NAME_BYTES

ANY_WORD, ANY_WORDS = "*", "#"


def matches(pattern: str, key: str) -> bool:
    """Whether a topic exchange matches; a word `*` or `#` of a key is a word like another."""
    return _can_match_same(_mark_words(pattern), [f"={word}" for word in _words(key)])


@lru_cache(maxsize=4096)
def overlap(one: str, other: str) -> bool:
    """Whether there is a key that matches both patterns."""
    return _can_match_same(_mark_words(one), _mark_words(other))


def key_for(pattern: str) -> str:
    """A key that the pattern matches, no longer than the pattern itself."""
    words = ["x" if word == ANY_WORD else word for word in _words(pattern)]
    key = ".".join(word for word in words if word != ANY_WORDS)
    if matches(pattern, key):
        return key
    return ".".join("x" if word == ANY_WORDS else word for word in words)


def key_for_none(patterns: Iterable[str]) -> str | None:
    """A key that none of the patterns matches; None when they take every key there is.

    A word that none of them states can only be taken by wildcards, so that the number of words is
    all that counts, up to one more than the longest pattern has.
    """
    patterns = list(patterns)
    split = [_words(pattern) for pattern in patterns]
    stated = {word for words in split for word in words}
    fresh = next(word for n in count() if (word := f"o{n or ''}") not in stated)
    longest = max(map(len, split), default=0) + 1
    keys = (".".join([fresh] * number) for number in range(longest + 1))
    fitting = (key for key in keys if len(key) <= LONGEST_NAME_BYTES)
    free = (key for key in fitting if not any(matches(pattern, key) for pattern in patterns))
    return next(free, None)


def _words(text: str) -> list[str]:
    return text.split(".") if text else []


def _mark_words(pattern: str) -> list[str]:
    """The words of a pattern, those that are no wildcard marked as such."""
    wild = (ANY_WORD, ANY_WORDS)
    return [word if word in wild else f"={word}" for word in _words(pattern)]


def _can_match_same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether there is a row of words that both take."""
    reached, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        i, j = waiting.pop()
        if i == len(one) and j == len(other):
            return True
        here = one[i] if i < len(one) else "", other[j] if j < len(other) else ""
        steps = set(_steps(*here, i, j)) - reached
        reached |= steps
        waiting.extend(steps)
    return False


def _steps(left: str, right: str, i: int, j: int) -> Iterable[tuple[int, int]]:
    """The pairs of places after a pair; "" is past the end."""
    if left == ANY_WORDS:
        yield i + 1, j
        if right:
            yield i, j + 1
    if right == ANY_WORDS:
        yield i, j + 1
        if left:
            yield i + 1, j
    elif left and right and left != ANY_WORDS and (left == right or ANY_WORD in (left, right)):
        yield i + 1, j + 1
