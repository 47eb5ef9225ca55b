"""The figures of one UTC day: from lines to rows of results, in as few passes as there can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from analytics import compacted
from analytics.events import PROBE
from analytics.jobs import command, messages, schema
from analytics.jobs.messages import BROADCAST_AT_MOST, Day, union
from analytics.jobs.schema import keep
from analytics.jobs.tables import accuracy, losses, retries, trails

ONE_DAY = timedelta(days=1)
FAILURE = (
    *("broker", "topology", "kind", "attempt", "recorded_us", "requested_delay_ms", "failures"),
    *schema.CAUSE,
)


@dataclass(frozen=True)
class Figures:
    """The tables by name that may have rows, and what was read: lines, malformed, excluded."""

    tables: dict[str, DataFrame]
    summary: dict[str, int | dict[str, int]]


def figures(
    spark: SparkSession,
    log: Path,
    day: date,
    *,
    parking: losses.Parking,
    now: datetime,
    step: Callable[[int], None],
) -> Figures:
    """The figures of a day from a log recorded up to `now`. Raises command.NoData."""
    step(2)
    given = compacted.input_of(log, day)
    events = schema.events_of(schema.read_days(spark, [given]))
    if given.files:
        # Lines are parsed once. Of Parquet each pass reads its columns, which costs less than to
        # keep all rows.
        events = keep(events)
    summary = _summary(events, parking)
    if not summary["observed"] and not summary["probes"]:
        raise command.NoData(
            f"The event log of {day} has {summary['lines']} lines, but no readable line of a "
            f"tap ({summary['malformed']} are malformed)."
        )
    step(3)
    until = day + timedelta(milliseconds=summary["longest_delay_ms"]) + 2 * ONE_DAY
    number = (min(until, now.date() + ONE_DAY) - day).days
    following_days = (compacted.input_of(log, day + n * ONE_DAY) for n in range(1, number))
    later = [one for one in following_days if not one.is_empty]
    if later:
        following = schema.events_of(schema.read_days(spark, later))
        is_of_the_day = f.expr(accuracy.IS_OF_THE_DAY_BEFORE) | losses.is_given_up(parking)
        events = events.union(keep(following.where(is_of_the_day)))
    begin = datetime.combine(day, time(), UTC)
    data_end = min(now, datetime.combine(until, time(), UTC))
    excluded = {
        "malformed": summary["malformed"] - summary["torn"],
        **{reason: summary[reason] for reason in ("torn", "no_topology", "unknown_source")},
    }
    read = {name: summary[name] for name in ("lines", "malformed")}
    # The events of the following days are not counted yet.
    summary["ended"] += len(later)
    return Figures(
        _tables(events, summary, (begin, begin + ONE_DAY), data_end, parking),
        {**read, "excluded": excluded},
    )


def _tables(
    events: DataFrame,
    summary: dict[str, int],
    day: Day,
    data_end: datetime,
    parking: losses.Parking,
) -> dict[str, DataFrame]:
    begin, end = day
    # Planning a query takes one core: meanwhile others are planned and computed.
    with ThreadPoolExecutor() as pool:

        def compute(make: Callable[[], DataFrame]) -> Future[DataFrame]:
            # What adds up one partition needs no exchange.
            return pool.submit(lambda: keep(make(), eager=True).coalesce(1))

        observed = schema.observed(events)
        copies = []
        if summary["without_id"]:
            unnamed, sources = observed.where("not has_id"), summary["sources"]
            copies.append(pool.submit(lambda: keep(schema.each_once_without_id(unnamed, sources))))
        names = compute(lambda: events.select("destination", "publisher", "version").distinct())
        found = {}
        if summary["dead_letters"]:
            arrived = keep(losses.read_dead_letters(events))
            found["dead_letters"] = compute(lambda: losses.count_dead_letters(arrived, end))
        if summary["probes"]:
            found["probes"] = compute(lambda: lateness_of_probes(events, day, data_end))
        ended = keep(losses.ended(events, parking)) if summary["ended"] else None
        if ended is not None and ended.count() <= BROADCAST_AT_MOST:
            ended = f.broadcast(ended)
        single, mixed = messages.single(observed, ended, day)
        if mixed is not None:
            # Those with an id that one aggregation does not count.
            named = observed.where("has_id").join(mixed, list(schema.MESSAGE), "left_semi")
            copies.append(pool.submit(lambda: keep(schema.each_once(named))))
        others = None
        if copies:
            facts = events if summary["ended"] else None
            others = pool.submit(
                lambda: messages.others(union(one.result() for one in copies), facts, day)
            )

        def parts() -> Iterator[messages.SingleMessages | messages.OtherMessages]:
            # Last, because the others take longest to plan.
            yield single
            if others:
                yield others.result()

        by_trail = compute(
            lambda: trails.by_trail(
                trails.with_outcome(union(one.trails() for one in parts()), ended, end)
            )
        )
        failures = compute(
            lambda: retries.failures(union(one.events.select(*FAILURE) for one in parts()), *day)
        )
        found["attempts"] = compute(
            lambda: retries.attempts(union(one.attempts() for one in parts()))
        )
        if others:
            found["excluded"] = compute(lambda: losses.repeats(others.result().copies, end))
        pairs = [one.pairs() for one in parts()]
        if summary["traced"]:
            pairs.append(accuracy.pair(schema.traced_trips(events)))
        began_at = f.col("began_at")
        of_day = keep(union(pairs).where((began_at >= f.lit(begin)) & (began_at < f.lit(end))))
        counts = compute(lambda: accuracy.counts(of_day, data_end))
        percentiles = compute(lambda: accuracy.percentiles(of_day))
        of_trails = pool.submit(
            lambda: _of_trails(by_trail.result(), failures.result(), names.result())
        )
        of_pairs = pool.submit(
            lambda: _of_pairs(counts.result(), percentiles.result(), destinations(names.result()))
        )
        missing = keep(losses.with_fate(accuracy.missing(of_day, data_end), ended))
        lost = [losses.losses(missing, destinations(names.result()))]
        if others:
            lost.append(losses.possible_repeats(others.result().events, *day))
        return {
            **{name: frame.result() for name, frame in found.items()},
            **of_trails.result(),
            **of_pairs.result(),
            "losses": union(lost),
            "unexplained": losses.unexplained(missing),
        }


def destinations(names: DataFrame) -> DataFrame:
    """The names of destinations by the `destination_id` of pairs."""
    destination = f.xxhash64("destination").alias("destination_id")
    return names.select(destination, "destination").distinct()


def _of_pairs(
    counts: DataFrame, percentiles: DataFrame, destinations: DataFrame
) -> dict[str, DataFrame]:
    by_destination = counts.join(destinations, "destination_id", "left")
    by_delay = accuracy.by_delay(counts, percentiles)
    return {
        "accuracy": accuracy.accuracy(by_delay),
        "uncounted": accuracy.uncounted(by_delay),
        "histogram": accuracy.histogram(by_destination),
        "hours": accuracy.by_hour(by_destination),
        "early": accuracy.early(by_destination),
    }


def _of_trails(by_trail: DataFrame, failures: DataFrame, names: DataFrame) -> dict[str, DataFrame]:
    release = schema.release_id().alias("release_id")
    releases = names.select(release, "publisher", "version").distinct()
    return {
        "retries": retries.retries(by_trail),
        "releases": retries.releases(by_trail, releases),
        "groups": trails.groups(by_trail, failures),
        "outcomes": trails.outcomes(by_trail),
        "recoveries": trails.recoveries(by_trail),
        "causes": retries.causes(failures),
        "failures": retries.by_hour(failures),
    }


def _summary(events: DataFrame, parking: losses.Parking) -> dict[str, int]:
    is_malformed = f.col("is_malformed")
    waited = f.when(f.col("kind").isin("scheduled", "delivered"), f.col("requested_delay_ms"))
    is_observed = ~is_malformed & f.col("source").isin(*schema.OBSERVED)
    is_used = schema.is_traced() | losses.is_end(parking)
    is_unplaced = is_observed & (f.col("topology") == "") & ~is_used
    is_known = f.coalesce(f.col("source").isin(*schema.KNOWN_SOURCES), f.lit(False))
    found = [f.max((is_observed & (f.col("source") == one)).cast("int")) for one in schema.OBSERVED]
    row = events.agg(
        f.count("*").alias("lines"),
        f.count_if(is_malformed).alias("malformed"),
        f.count_if("is_torn").alias("torn"),
        f.count_if(is_observed).alias("observed"),
        f.count_if(is_unplaced).alias("no_topology"),
        f.count_if(~is_malformed & ~is_known).alias("unknown_source"),
        f.count_if(is_observed & ~f.col("has_id")).alias("without_id"),
        # How many of the sources there are.
        reduce(Column.__add__, found).alias("sources"),
        f.count_if(schema.is_traced()).alias("traced"),
        f.count_if(losses.is_end(parking)).alias("ended"),
        f.count_if(losses.is_dead_letter()).alias("dead_letters"),
        f.count_if(is_probe()).alias("probes"),
        f.coalesce(f.max(waited), f.lit(0)).alias("longest_delay_ms"),
    ).collect()[0]
    summary: dict[str, int] = row.asDict()
    return summary


def is_probe() -> Column:
    return ~f.col("is_malformed") & f.coalesce(f.col("source") == PROBE, f.lit(False))


def lateness_of_probes(
    events: DataFrame, day: tuple[datetime, datetime], data_end: datetime
) -> DataFrame:
    """The lateness of probes by their own events, which count nowhere else.

    Events -> how many probes of the day per topology, bucket of delay, bucket of lateness (null
    unless measured) and whether they arrived; those that are not due yet are left out.
    """
    begin, end = day
    sides = events.where(is_probe()).dropDuplicates(["event_id"]).withColumn("queue", f.lit(""))
    pairs = accuracy.pair(sides.select(*schema.TRIP_COLUMNS, "queue"))
    began_at = f.col("began_at")
    of_day = pairs.where((began_at >= f.lit(begin)) & (began_at < f.lit(end)))
    counted = accuracy.counts(of_day, data_end)
    return (
        counted.where(f.col("has_left") | ~f.col("is_open"))
        .groupBy("broker", "topology", "delay_bucket", "bucket", "has_left")
        .agg(f.sum("messages").alias("messages"))
    )
