"""A ladder as SVG: the spine on the left, a rung for each level, delivery at the foot."""

from __future__ import annotations

from dataclasses import dataclass

from topology.graph.delay_levels.delivery_svg import (
    HALF_BOX,
    WIDTH,
    destinations_height,
    draw_destinations,
)
from topology.graph.delay_levels.diagram import Ladder, Rung
from topology.graph.live_values import pace
from topology.graph.svg_elements import (
    accessible_text,
    attribute,
    bar,
    content,
    live,
    marker,
    n,
    root,
    signs,
    text,
)

TOP = 26.0
LEVEL_END, SPINE, LEFT = 24.0, 46.0, 74.0
WAIT, DEPTH_END, BAR, BAR_WIDTH, RIGHT = 84.0, 226.0, 236.0, 198.0, 444.0
SIGN, PULSE, RATE, EXACT_END, STATE = 458.0, 480.0, 490.0, 614.0, 626.0
NODE = 5.5
# Levels at most -> the distance between two rungs and the height of one.
PITCHES = ((10, 30.0, 22.0), (20, 24.0, 19.0), (28, 20.5, 16.5))
SHORT_LACKS = {"queue binding": "binding", "next-level binding": "next level"}
ARROWS = ("binding",)


@dataclass(frozen=True)
class _Room:
    """From one rung to the next, the height of a rung, and the highest level."""

    pitch: float
    height: float
    top: int

    @property
    def is_wide(self) -> bool:
        return self.pitch > 22


def draw_ladder(ladder: Ladder, *, title: str, id: str = "ladder") -> str:
    """The diagram, WIDTH wide and, with 28 levels, low enough for a laptop screen.

    `id` must be unique on its page; markers and texts are named after it.
    """
    own, room = attribute(id), _room(ladder)
    places = [TOP + room.pitch * (place + 0.5) for place in range(len(ladder.rungs))]
    foot = TOP + room.pitch * len(places) + 12
    deep = destinations_height(ladder)
    ends = [*places[1:], foot + deep / 2 - HALF_BOX]
    rungs = list(zip(ladder.rungs, places, ends, strict=True))
    return "".join(
        [
            root(own, "graph ladder", WIDTH, foot + deep + 4),
            accessible_text(own, title, _describe(ladder)),
            f"<defs>{''.join(marker(own, kind) for kind in ARROWS)}</defs>",
            _heads(ladder),
            *(_steps(own, rung, y, below, room) for rung, y, below in rungs),
            *(_rung(ladder, rung, y, room.height) for rung, y, _ in rungs),
            draw_destinations(own, ladder, foot),
            "</svg>",
        ]
    )


def sentence(rung: Rung) -> str:
    """All that is known about a level, for its tooltip and for screen readers."""
    words = [f"Level {rung.level}, queue {rung.name}: waits {rung.wait} ({rung.exact})"]
    if rung.numbers is not None and rung.numbers.messages is not None:
        words.append(f"{rung.messages.text} messages at drawing time")
        words.append(f"each due within {rung.due}")
    sentence = f" Now: {rung.words}." if rung.words else ""
    return ", ".join(words) + "." + sentence


def _room(ladder: Ladder) -> _Room:
    levels = len(ladder.rungs)
    pitch, height = next((pitch, high) for most, pitch, high in PITCHES if levels <= most)
    return _Room(pitch, height, ladder.rungs[0].level)


def _describe(ladder: Ladder) -> str:
    top, low = ladder.rungs[0], ladder.rungs[-1]
    rungs = [rung for rung in ladder.rungs if rung.mark not in ("", "empty", "unknown")]
    return " ".join(
        [
            f"{len(ladder.rungs)} levels, from {top.wait} at the top down to {low.wait}, then",
            f"{ladder.delivery} with {len(ladder.destinations)} destinations.",
            *(sentence(rung) for rung in rungs[:40]),
            "The table next to the diagram lists the same data.",
        ]
    )


def _heads(ladder: Ladder) -> str:
    y = 15.0
    heads = [
        text("head head-end", LEVEL_END, y, "level"),
        text("head", WAIT, y, "waits"),
        text("head head-end", EXACT_END, y, "exactly"),
    ]
    if ladder.is_seen and not ladder.is_absent:
        heads += [
            text("head head-end", DEPTH_END, y, "messages"),
            text("head", BAR, y, "0"),
            text("head head-middle", BAR + BAR_WIDTH / 2, y, "1\u202f000"),
            text("head head-end", BAR + BAR_WIDTH, y, "1\u202f000\u202f000"),
            text("head", RATE, y, "in"),
        ]
    return "".join(heads)


def _steps(own: str, rung: Rung, y: float, below: float, room: _Room) -> str:
    """The level's exchange on the spine, its ways into the rung and down, and the way back.

    `below` is where the way down ends: the next level's exchange, or delivery.
    """
    is_last = rung.level == 0
    tip = f' marker-end="url(#{own}-binding)"' if is_last else ""
    down = below - 8 if is_last else below - NODE
    into = {"exchange", "queue", "queue binding"} & set(rung.lacks)
    out = {"exchange", "next-level binding"} & set(rung.lacks)
    gap, shift = y + room.height / 2, 14.0 if is_last else 7.0
    end = below - 1 if is_last else below - 4
    back = (
        f"M{n(LEFT + 10)} {n(gap)}C{n(LEFT + 9)} {n(gap + 5)} {n(SPINE + shift + 10)} {n(end - 5)}"
        f" {n(SPINE + shift)} {n(end)}"
    )
    no = " step-missing"
    node = f"M{n(SPINE - 7)} {n(y)}l3.5 -5.5h7l3.5 5.5l-3.5 5.5h-7z"
    bits = ""
    if room.is_wide or rung.level == room.top:
        one = y - 3 if rung.level == room.top else y + 9.5
        bits = text("bit", SPINE + 15, one, "1") + text("bit", SPINE - 7, y + NODE + 9, "0")
    return (
        f'<path class="edge step{no if out else ""}" d="M{n(SPINE)} {n(y + NODE)}V{n(down)}"{tip}/>'
        f'<path class="edge step{no if into else ""}" d="M{n(SPINE + 7)} {n(y)}H{n(LEFT)}"/>'
        f'<path class="edge edge-back{no if rung.is_missing else ""}" d="{back}"/>'
        f'<path class="stop{no if "exchange" in rung.lacks else ""}" d="{node}"/>{bits}'
    )


def _rung(ladder: Ladder, rung: Rung, y: float, height: float) -> str:
    base = y + 4
    key = f' data-mark="queue/{attribute(rung.name)}"' if rung.is_live else ""
    state = "no_consumer" if rung.is_off and not rung.lacks else rung.mark
    missing = " node-missing" if rung.is_missing else ""
    state_attribute = f' data-state="{state}"' if state else ""
    parts = [
        f'<g class="rung{missing}"{key}{state_attribute}>',
        f"<title>{content(sentence(rung))}</title>",
        f'<rect class="shape" x="{n(LEFT)}" y="{n(y - height / 2)}" width="{n(RIGHT - LEFT)}"'
        f' height="{n(height)}" rx="4"/>',
        text("level", LEVEL_END, base, str(rung.level)),
        text("wait", WAIT, base, rung.wait),
        text("exact end", EXACT_END, base, rung.exact),
    ]
    if rung.is_missing and not ladder.is_absent:
        parts.append(text("small", BAR, base, "missing in the broker"))
    elif ladder.is_seen and not rung.is_missing:
        parts += _numbers(rung, y, base)
    else:
        parts.append(text("then", BAR, base, _next(rung)))
    if not ladder.is_absent:
        parts += [signs(SIGN, y), _states(rung, base)]
    return "".join([*parts, "</g>"])


def _next(rung: Rung) -> str:
    return f"then on to level {rung.level - 1}" if rung.level else "then to delivery"


def _numbers(rung: Rung, y: float, base: float) -> list[str]:
    messages = rung.numbers.messages if rung.numbers else None
    rate = rung.numbers.publish_rate if rung.numbers else None
    place = f'x="{n(BAR)}" y="{n(y - 4)}" height="8" rx="2"'
    return [
        text("depth", DEPTH_END, base, live(rung.messages.key, rung.messages.text)),
        bar(rung.messages.key, place, BAR_WIDTH, messages, None),
        f'<circle class="pulse" cx="{n(PULSE)}" cy="{n(y)}" r="3.5" data-pace="{pace(rate)}"'
        f' data-rate="{attribute(rung.rate.key)}"/>',
        text("small", RATE, base, live(rung.rate.key, rung.rate.text)),
    ]


def _states(rung: Rung, base: float) -> str:
    """The texts at the rung's end, one for each state; CSS shows the current one."""
    if rung.lacks and not rung.is_missing:
        return text("fault", STATE, base, f"no {SHORT_LACKS.get(rung.lacks[0], rung.lacks[0])}")
    if rung.lacks:
        return ""
    if rung.is_off:
        return text("fault", STATE, base, "wrong TTL")
    states = {"down": "not running", "full": "full", "taken": "a consumer"}
    if rung.stuck is not None:
        states["stuck"] = f"{live(rung.kept.key, rung.kept.text)} stuck"
    return "".join(text(f"fault if-{name}", STATE, base, words) for name, words in states.items())
