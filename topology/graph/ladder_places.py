"""Where the rungs and the destinations of a ladder are drawn; templates/topology/ladder.svg."""

from __future__ import annotations

from dataclasses import dataclass

from topology.content.text import visible
from topology.graph.geometry import shorten
from topology.graph.ladder import NOWHERE, Destination, Ladder, Rung
from topology.graph.live_values import pace
from topology.graph.svg import bar_share, n

TOP, BAR_WIDTH = 26.0, 198.0
# Levels at most -> the distance between two rungs and the height of one.
PITCHES = ((10, 30.0, 22.0), (20, 24.0, 19.0), (28, 20.5, 16.5))
SHORT_LACKS = {"queue binding": "binding", "next-level binding": "next level"}
END_PITCH, HALF_BOX, MOST_ENDS = 23.0, 20.0, 5
BOX_CELLS, END_CELLS = 30, 40
TROUBLE = {"missing": 0, NOWHERE: 0, "down": 0, "full": 1, "no_consumer": 1}


@dataclass(frozen=True)
class PlacedRung:
    """A rung with its middle at `y`, and the distance to what is below."""

    rung: Rung
    y: float
    reach: float
    height: float
    is_highest: bool
    has_bits: bool

    @property
    def top(self) -> float:
        return -self.height / 2

    @property
    def down(self) -> float:
        """Where the way down ends: at the next level's exchange, or above delivery."""
        return self.reach - (5.5 if self.rung.level else 8)

    @property
    def back(self) -> str:
        """The curve from the queue to the next exchange."""
        gap, end = self.height / 2, self.reach - (4 if self.rung.level else 1)
        x = 53 if self.rung.level else 60
        return f"M84 {gap}C83 {gap + 5} {x + 10} {end - 5} {x} {end}"

    @property
    def state(self) -> str:
        return "no_consumer" if self.rung.is_off and not self.rung.lacks else self.rung.mark

    @property
    def has_no_entry(self) -> bool:
        return bool({"exchange", "queue", "queue binding"} & set(self.rung.lacks))

    @property
    def has_no_exit(self) -> bool:
        return bool({"exchange", "next-level binding"} & set(self.rung.lacks))

    @property
    def fault(self) -> str:
        """What is wrong in its build; "" for nothing."""
        if self.rung.lacks:
            lack = self.rung.lacks[0]
            return "" if self.rung.is_missing else f"no {SHORT_LACKS.get(lack, lack)}"
        return "wrong TTL" if self.rung.is_off else ""

    @property
    def filled(self) -> str:
        return n(BAR_WIDTH * bar_share(self.rung.known.messages, None))

    @property
    def pace(self) -> str:
        return pace(self.rung.known.publish_rate)

    @property
    def sentence(self) -> str:
        """All that is known about a level, for its tooltip and for screen readers."""
        rung = self.rung
        words = [f"Level {rung.level}, queue {rung.name}: waits {rung.wait} ({rung.exact})"]
        if rung.known.messages is not None:
            words.append(f"{rung.messages} messages at drawing time")
            words.append(f"each due within {rung.due}")
        sentence = f" Now: {rung.words}." if rung.words else ""
        return ", ".join(words) + "." + sentence


@dataclass(frozen=True)
class PlacedEnd:
    """A destination; `y` counts from the middle of the delivery exchange."""

    end: Destination
    y: float

    @property
    def fault(self) -> str:
        return self.end.words if self.end.missing or self.end.mark == NOWHERE else ""

    @property
    def name(self) -> str:
        return shorten(visible(self.end.name), END_CELLS - len(self.fault)) or "(no name)"


@dataclass(frozen=True)
class PlacedLadder:
    """`middle` is the place of the delivery exchange; `more` ends are not drawn."""

    ladder: Ladder
    rungs: tuple[PlacedRung, ...]
    middle: float
    height: float
    ends: tuple[PlacedEnd, ...]
    rows: tuple[float, ...]
    more: int

    @property
    def delivery(self) -> str:
        return shorten(visible(self.ladder.delivery), BOX_CELLS) or "(no name)"

    @property
    def note_y(self) -> float:
        return self.rows[-1] + 4

    @property
    def description(self) -> str:
        rungs, ladder = self.rungs, self.ladder
        marked = [one for one in rungs if one.rung.mark not in ("", "empty", "unknown")]
        return " ".join(
            [
                f"{len(rungs)} levels, from {rungs[0].rung.wait} at the top down to",
                f"{rungs[-1].rung.wait}, then {ladder.delivery} with",
                f"{len(ladder.destinations)} destinations.",
                *(one.sentence for one in marked[:40]),
                "The table next to the diagram lists the same data.",
            ]
        )


def place_ladder(ladder: Ladder) -> PlacedLadder:
    """Place the ladder, as high as its levels need; 28 fit on a laptop screen. Ends with problems
    come first.
    """
    number = len(ladder.rungs)
    pitch, height = next((pitch, high) for most, pitch, high in PITCHES if number <= most)
    ends = sorted(ladder.destinations, key=lambda end: TROUBLE.get(end.mark, 2))
    shown = ends if len(ends) <= MOST_ENDS else ends[: MOST_ENDS - 1]
    count = max(1, min(len(ends), MOST_ENDS))
    foot, deep = TOP + pitch * number + 12, max(44.0, END_PITCH * count + 4)
    middle = foot + deep / 2
    places = [TOP + pitch * (place + 0.5) for place in range(number)]
    below = [*places[1:], middle - HALF_BOX]
    highest = ladder.rungs[0].level
    rungs = []
    for rung, y, end in zip(ladder.rungs, places, below, strict=True):
        is_highest = rung.level == highest
        rungs.append(PlacedRung(rung, y, end - y, height, is_highest, pitch > 22 or is_highest))
    rows = tuple(END_PITCH * (place - (count - 1) / 2) for place in range(count))
    drawn = tuple(PlacedEnd(end, y) for end, y in zip(shown, rows, strict=False))
    high, more = foot + deep + 4, len(ends) - len(shown)
    return PlacedLadder(ladder, tuple(rungs), middle, high, drawn, rows, more)
