"""A log made by hand for the jobs; each topology in it is one case."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from analytics.events import MessageEvent
from tests.analytics import letter_oracle, report_oracle, retry_oracle
from tests.analytics.builders import DELAY, NOON, a_trip, an_entry, an_event, an_exit, ms

MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def many_trips() -> list[MessageEvent]:
    """A heavy tail of lateness, messages in the order of nothing at all."""
    chance = random.Random(7)
    events = []
    for number in range(600):
        delay_ms = chance.choice([5000, 60_000])
        events += a_trip(
            f"m{number}",
            NOON + ms(chance.uniform(0, 3_000_000)),
            ms(chance.lognormvariate(1.5, 1.2) - 1),
            topology="many",
            requested_delay_ms=delay_ms,
        )
    return events


def equal_messages() -> list[MessageEvent]:
    """A heartbeat each minute through five minutes of delay, without id, all the same content.

    It runs from the day before to the day after; those of 12:10 and 23:59 never come back.
    """
    same: dict[str, Any] = {
        "message_id": "",
        "content_id": "beat",
        "topology": "beats",
        "requested_delay_ms": 300_000,
    }
    start = datetime(2026, 11, 20, tzinfo=UTC) - 5 * MINUTE
    lost = (NOON + 10 * MINUTE, MIDNIGHT - MINUTE)
    events = []
    for number in range(24 * 60 + 20):
        entry, exit_ = a_trip(at=start + number * MINUTE, late=ms(3), **same)
        events += [entry] if entry.recorded_at in lost else [entry, exit_]
    return events


def a_burst_of_equal_messages() -> list[MessageEvent]:
    same: dict[str, Any] = {"message_id": "", "content_id": "burst", "topology": "burst"}
    return [event for n in range(50) for event in a_trip(at=NOON + ms(n), late=ms(4), **same)]


def odd_ends() -> list[MessageEvent]:
    """Each kind of entry that is not measured, and a delay over midnight that is."""
    of: dict[str, Any] = {"topology": "odd"}
    behind = an_entry("behind", caught_up=False, **of)
    late_exit = an_exit("late exit", caught_up=False, **of)
    return [
        *a_trip("measured", late=ms(20), **of),
        *a_trip("early", late=ms(-62.5), **of),
        *a_trip("over midnight", MIDNIGHT - ms(100), late=ms(8), **of),
        *[behind, an_exit("behind", **of)],
        *[an_entry("late exit", **of), late_exit],
        an_entry("missing", **of),
        an_exit("entered before the tap", **of),
        an_entry("two months", topology="open", requested_delay_ms=60 * 86_400_000),
    ]


def retried() -> list[MessageEvent]:
    """Ten messages: 4 fail once, 2 of them twice, 1 of those a third time by expiry."""
    of: dict[str, Any] = {"topology": "shop"}
    events = [an_event(kind="published", message_id=f"s{n}", attempt=0, **of) for n in range(10)]
    for attempt, numbers in ((1, range(4)), (2, range(2)), (3, range(1))):
        reason = "expired" if attempt == 3 else "rejected"
        for number in numbers:
            death: dict[str, Any] = {"death_reason": reason, "death_queue": "shop"}
            at = NOON + attempt * MINUTE
            events.append(an_entry(f"s{number}", at, attempt=attempt, **of, **death))
            events.append(an_exit(f"s{number}", at + DELAY, attempt=attempt, **of))
    return events


def repeats() -> list[MessageEvent]:
    """Three trips; the recorder crashed and recorded the second and its exit once more."""
    of: dict[str, Any] = {"topology": "again"}
    twice = a_trip("r2", late=ms(5), **of)
    again = [
        an_event(
            kind=event.kind,
            message_id="r2",
            recorded_at=event.recorded_at + MINUTE,
            redelivered=True,
            caught_up=False,
            **of,
        )
        for event in twice
    ]
    return [*a_trip("r1", **of), *twice, *again, *a_trip("r3", **of)]


def repeats_without_id() -> list[MessageEvent]:
    """Fifty equal messages; the recorder crashed, and recorded the last twenty entries again."""
    same: dict[str, Any] = {"message_id": "", "content_id": "equal", "topology": "prefetch"}
    trips = [a_trip(at=NOON + n * ms(40), late=ms(4), **same) for n in range(50)]
    again = [
        an_entry(at=NOON + ms(2500 + n), redelivered=True, caught_up=False, **same)
        for n in range(20)
    ]
    return [*chain.from_iterable(trips), *again]


def told_twice() -> list[MessageEvent]:
    """Three trips and four without an id that a tap saw, and a trace too; two it alone saw."""
    of: dict[str, Any] = {"topology": "twice"}
    same: dict[str, Any] = of | {"message_id": "", "content_id": "tap's"}
    of_trace: dict[str, Any] = {"source": "import", "caught_up": False}
    seen = [event for name in ("t1", "t2", "t3") for event in a_trip(name, late=ms(5), **of)]
    beats = [event for n in range(4) for event in a_trip(at=NOON + n * MINUTE, **same)]
    copies = [
        replace(event, event_id=f"trace:{n}", content_id="trace's", **of_trace)
        for n, event in enumerate([*seen, *beats])
    ]
    alone = [event for name in ("t4", "t5") for event in a_trip(name, **of, **of_trace)]
    return [*seen, *beats, *copies, *alone]


def facts() -> list[MessageEvent]:
    """What Delayboard stated itself, of a message that a tap saw too."""
    return [
        an_event(kind="published", source="delayboard", message_id="s0", topology="shop"),
        an_event(kind="scheduled", source="delayboard", message_id="x", topology="fact"),
    ]


def of_the_firehose() -> list[MessageEvent]:
    """Messages in a hold queue that no tap sees, and what else passes in the vhost."""
    of: dict[str, Any] = {"topology": "held", "source": "firehose"}
    none: dict[str, Any] = {"topology": "", "source": "firehose"}
    return [
        an_entry("h1", **of),
        an_exit("h1", caught_up=False, **of),
        *a_trip("h2", late=10 * MINUTE, **of),
        an_exit("h3", **of),
        an_entry("h4", **of),
        an_exit("h4", event_id="trace:h4", **of | {"source": "import"}),
        *a_trip("h1", **none),
        an_event(kind="published", message_id="h2", **none),
        # Kept by consumers: its exit looks like that of a message without a delay.
        an_entry("h5", attempt=0, **of),
        an_exit("h5", attempt=0, requested_delay_ms=0, **of),
    ]


def of_a_trace() -> list[MessageEvent]:
    """The issue's numbers, as a trace shows them: no copy of what dies into the delay."""
    of: dict[str, Any] = {"topology": "traced", "source": "import", "caught_up": False}
    none: dict[str, Any] = of | {"attempt": 0, "requested_delay_ms": 0}
    events = []
    for number in range(40):
        name = f"m{number}"
        events.append(an_event(kind="published", message_id=name, **none))
        events.append(an_event(kind="delivered", message_id=name, **none))
        for attempt in range(1, (number < 15) + (number < 3) + 1):
            x_death = [
                {"count": attempt, "reason": reason, "queue": queue, "time": int(NOON.timestamp())}
                for reason, queue in (("expired", "traced-retry"), ("rejected", "traced"))
            ]
            at = NOON + attempt * MINUTE
            headers = json.dumps({"x-death": x_death})
            events.append(an_exit(name, at, attempt=attempt, headers_json=headers, **of))
    hostile = ["5", "[5]", '[{"count":"x"}]', '[{"queue":5,"count":-1,"reason":[1],"time":"x"}]']
    hostile += [f'[{{"queue":"q","count":{10**30},"reason":"rejected"}}]', "{", '{"x-death":"']
    texts = [f'{{"x-death":{text}}}' for text in hostile]
    return events + [
        an_exit(f"hostile {n}", headers_json=text, **of | {"topology": "hostile"})
        for n, text in enumerate(texts)
    ]


def through_unknown_queues() -> list[MessageEvent]:
    """What a trace shows of delay queues of no topology: one says its delay, one does not."""
    of: dict[str, Any] = {"topology": "", "source": "import", "caught_up": False}
    out: dict[str, Any] = of | {"kind": "delivered", "death_reason": "expired", "queue": "work"}
    entry: dict[str, Any] = of | {"kind": "published", "attempt": 0, "requested_delay_ms": 0}
    events = []
    for n in range(4):
        for queue, delay_ms in (("wait-5s", 5000), ("wait-unknown", 0)):
            name = {"message_id": f"{queue} {n}"}
            events.append(an_event(event_id=f"trace:{queue}{n}", **entry | name, queue=queue))
            events.append(
                an_event(
                    event_id=f"trace:{queue}{n}-out",
                    recorded_at=NOON + DELAY + ms(7),
                    requested_delay_ms=delay_ms,
                    death_queue=queue,
                    **out | name,
                )
            )
    events.append(an_event(event_id="trace:past", **entry | {"queue": "work"}))
    second = out | {"requested_delay_ms": 5000, "death_queue": "wait-5s", "attempt": 2}
    events.append(an_event(event_id="trace:again", recorded_at=NOON + 2 * DELAY, **second))
    return events


def stuck() -> list[MessageEvent]:
    """Messages whose destination had no binding: delivered minutes after they were due."""
    late = timedelta(minutes=3)
    with_id = [a_trip(f"m{n}", NOON + n * MINUTE, late, topology="stuck") for n in range(3)]
    without = a_trip("", NOON, late, topology="stuck", content_id="other")
    never = [an_entry("m4", NOON, topology="stuck")]
    return [*chain.from_iterable(with_id), *without, *never]


def across_midnight() -> list[MessageEvent]:
    """Retries around both ends of the day: each ends, or goes on, on the other side."""
    of: dict[str, Any] = {"topology": "night"}
    failure: dict[str, Any] = of | {"death_reason": "rejected", "death_queue": "work"}
    failure["exception_type"] = "TimeoutError"
    begin, seconds = MIDNIGHT - timedelta(days=1), timedelta(seconds=1)

    def history(count: int, at: datetime) -> dict[str, Any]:
        death: dict[str, Any] = {"count": count, "reason": "rejected", "queue": "work"}
        death["time"] = int(at.timestamp())
        return {"headers_json": json.dumps({"x-death": [death]})}

    def trip(name: str, at: datetime, attempt: int = 1) -> list[MessageEvent]:
        return [
            an_entry(name, at, attempt=attempt, **failure),
            an_exit(name, at + DELAY, attempt=attempt, **of),
        ]

    parked = {"kind": "parked", "source": "delayboard", "topology": "", "queue": "work-dlq"}
    return [
        *trip("recovers", MIDNIGHT - 10 * seconds),
        *trip("fails again", MIDNIGHT - 10 * seconds),
        *trip("fails again", MIDNIGHT + 5 * seconds, attempt=2),
        *trip("waits", MIDNIGHT - 2 * seconds),
        *trip("dies", MIDNIGHT - 20 * seconds),
        an_event(message_id="dies", recorded_at=MIDNIGHT + 30 * seconds, **parked),
        an_exit("began before", begin + 3 * seconds, **of, **history(1, begin - 2 * seconds)),
        an_entry(
            "went on",
            begin + 10 * seconds,
            attempt=3,
            **failure,
            **history(3, begin - 60 * seconds),
        ),
        an_exit("went on", begin + 15 * seconds, attempt=3, **of),
    ]


def cancelled_later() -> list[MessageEvent]:
    """A message that waits for two days, and is cancelled on the day after it was sent."""
    of: dict[str, Any] = {"topology": "later", "requested_delay_ms": 172_800_000}
    cancelled = {"kind": "cancelled", "source": "delayboard", **of}
    return [
        an_entry("cancelled later", **of),
        an_event(message_id="cancelled later", recorded_at=MIDNIGHT + MINUTE, **cancelled),
    ]


def moved() -> list[MessageEvent]:
    """Of five entries two moved on the day and one eleven days later, whose facts are there twice;
    what took the place of one, in another topology of the same broker, is lost.
    """
    of: dict[str, Any] = {"topology": "moved", "requested_delay_ms": 30 * 86_400_000}
    fact: dict[str, Any] = {"kind": "moved", "source": "delayboard", "topology": "moved"}
    same: dict[str, Any] = {"message_id": "", "content_id": "moved beat"}
    moves = [
        an_event(message_id="moved", recorded_at=NOON + MINUTE, **fact),
        an_event(message_id="moved late", recorded_at=MIDNIGHT + timedelta(days=11), **fact),
        an_event(recorded_at=NOON + 2 * MINUTE, **fact, **same),
    ]
    return [
        an_entry("moved", **of),
        an_entry("moved", NOON + MINUTE, **of | {"topology": "moved-to"}),
        an_entry("moved late", **of),
        an_entry("gone", **of),
        *[an_entry(at=NOON + n * MINUTE, **of | same) for n in range(2)],
        *moves,
        *moves,
    ]


def rescheduled() -> list[MessageEvent]:
    """A message of an hour that got two minutes instead, and came out of them 7 ms late; its fact
    is there twice, recorded after the new entry.
    """
    of: dict[str, Any] = {"topology": "rescheduled"}
    fact = an_event(
        kind="moved",
        source="delayboard",
        message_id="again",
        attempt=0,
        requested_delay_ms=0,
        recorded_at=NOON + MINUTE + ms(20),
        **of,
    )
    trip = a_trip("again", NOON + MINUTE, ms(7), requested_delay_ms=120_000, **of)
    return [an_entry("again", requested_delay_ms=3_600_000, **of), *trip, fact, fact]


def probed() -> list[MessageEvent]:
    """Probes: late by 1 to 40 ms, one read from a backlog, one missing, one repeated line."""
    probe = {"topology": "probed", "source": "probe"}
    trips = [a_trip(f"p{n}", NOON + n * MINUTE, n * ms(1), **probe) for n in range(1, 41)]
    behind = a_trip("p41", NOON, ms(3000), **probe)
    behind[1] = replace(behind[1], caught_up=False)
    missing = an_entry("p42", NOON, **probe)
    return [*chain.from_iterable(trips), *behind, missing, trips[0][1]]


def generated() -> dict[str, list[MessageEvent]]:
    """Logs for the oracle, by topology: complete ones, and ones that lack most copies."""
    losses = {"whole": 0.0, "half": 0.5, "rare": 0.8}
    return {name: retry_oracle.a_log(7, name, loss=loss) for name, loss in losses.items()}


def all_cases() -> dict[str, list[MessageEvent]]:
    """The events of every case by its name."""
    cases = [
        many_trips,
        equal_messages,
        a_burst_of_equal_messages,
        odd_ends,
        retried,
        repeats,
        repeats_without_id,
        told_twice,
        stuck,
        probed,
        of_a_trace,
        through_unknown_queues,
        across_midnight,
        cancelled_later,
        moved,
        rescheduled,
        of_the_firehose,
        facts,
    ]
    # Two recorders read the copies of one topology: each has entries whose exits the other has.
    truth = report_oracle.a_log()
    shared = {"truth": truth[::2], "truth-too": truth[1::2], "letters": letter_oracle.a_log()}
    return {case.__name__: case() for case in cases} | generated() | shared
