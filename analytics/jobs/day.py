"""The figures of one UTC day: from lines to rows of results, in as few passes as there can be.

What is used several times is a local checkpoint and not a cache: it also cuts the plan, and to
analyse a plan of everything again with each step cost a small day most of its time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from analytics import compacted
from analytics.jobs import schema
from analytics.jobs.tables import (
    accuracy,
    dead_letters,
    losses,
    probes,
    retries,
    single_messages,
    trails,
)

ONE_DAY = timedelta(days=1)
# So many messages that are not single are sent to every task; more are joined by an exchange.
BROADCAST_AT_MOST = 500_000
FAILURE = (*("broker", "topology", "kind", "recorded_us", "requested_delay_ms", *schema.CAUSE),)


class NoData(Exception):
    """The log contains nothing for the day; the message says so."""


@dataclass(frozen=True)
class Figures:
    """The tables by name that may have rows, and what was read: lines, malformed, excluded."""

    tables: dict[str, DataFrame]
    summary: dict[str, int | dict[str, int]]


def figures(
    spark: SparkSession, log: Path, day: date, *, now: datetime, step: Callable[[int], None]
) -> Figures:
    """The figures of a day from a log recorded up to `now`. Raises NoData."""
    step(2)
    given = compacted.input_of(log, day)
    events = schema.events_of(schema.read_days(spark, [given]))
    if given.files:
        # Lines are parsed once. Of Parquet each pass reads its columns, which costs less than to
        # keep all rows in memory.
        events = events.localCheckpoint(eager=False)
    summary = _summary(events)
    if not summary["observed"] and not summary["probes"]:
        raise NoData(
            f"The event log of {day} has {summary['lines']} lines, but no readable line of a "
            f"tap ({summary['malformed']} are malformed)."
        )
    step(3)
    until = day + timedelta(milliseconds=summary["longest_delay_ms"]) + 2 * ONE_DAY
    days = _days(day + ONE_DAY, min(until, now.date() + ONE_DAY))
    later = [one for at in days if not (one := compacted.input_of(log, at)).is_empty]
    if later:
        following = schema.events_of(schema.read_days(spark, later))
        events = events.union(
            following.where(accuracy.IS_OF_THE_DAY_BEFORE).localCheckpoint(eager=False)
        )
    begin, end = (datetime.combine(one, time(), UTC) for one in (day, day + ONE_DAY))
    data_end = min(now, datetime.combine(until, time(), UTC))
    excluded = {
        "malformed": summary["malformed"] - summary["torn"],
        **{reason: summary[reason] for reason in ("torn", "no_topology", "unknown_source")},
    }
    read = {name: summary[name] for name in ("lines", "malformed")}
    # Of the days that follow nobody counted them.
    summary["ended"] += len(later)
    return Figures(_tables(events, summary, (begin, end), data_end), {**read, "excluded": excluded})


def _tables(
    events: DataFrame, summary: dict[str, int], day: tuple[datetime, datetime], data_end: datetime
) -> dict[str, DataFrame]:
    begin, end = day
    observed = schema.observed(events)
    by_attempt = single_messages.by_attempt(observed, begin, end).localCheckpoint(eager=False)
    mixed = by_attempt.where("not is_single").select(*single_messages.MESSAGE).distinct()
    mixed = mixed.localCheckpoint(eager=False)
    mixed_count = mixed.count()
    single, single_events = by_attempt, observed
    if mixed_count:
        mixed = f.broadcast(mixed) if mixed_count <= BROADCAST_AT_MOST else mixed
        message = list(single_messages.MESSAGE)
        single = by_attempt.join(mixed, message, "left_anti")
        single_events = observed.where("has_id").join(mixed, message, "left_anti")
    pairs = [single_messages.pairs(single)]
    messages = [single_messages.messages(single, begin, end)]
    tried = [single_messages.attempts(single)]
    died = [single_messages.deaths(single_events, begin, end)]
    failed = [single_events.where("has_id")]
    ended = losses.ended(events).localCheckpoint(eager=False) if summary["ended"] else None
    if ended is not None and ended.count() <= BROADCAST_AT_MOST:
        ended = f.broadcast(ended)
    others = []
    if summary["without_id"]:
        unnamed = observed.where("not has_id")
        others.append(schema.each_once_without_id(unnamed, summary["sources"]))
    if mixed_count:
        named = observed.where("has_id").join(mixed, message, "left_semi")
        others.append(schema.each_once(named))
    sides = [schema.traced_trips(events)] if summary["traced"] else []
    if others:
        # By message, so that what is counted by message needs no other exchange.
        by_message = _union(others).repartition(*single_messages.MESSAGE)
        copies = by_message.localCheckpoint(eager=False)
        each = copies.where("is_kept").drop("copies", "is_kept")
        counted = retries.of_day(each, begin, end).localCheckpoint(eager=False)
        sides.append(each.withColumn("queue", f.lit("")).select(*schema.TRIP_COLUMNS, "queue"))
        failed.append(each)
        messages += [
            retries.by_message(counted),
            trails.trails(trails.sides(each, end), begin, end),
        ]
        tried.append(retries.by_attempt(counted))
        died.append(retries.by_death(counted, begin))
    if sides:
        pairs.append(accuracy.pair(_union(sides)))
    began_at = f.col("began_at")
    of_day = (
        _union(pairs)
        .where((began_at >= f.lit(begin)) & (began_at < f.lit(end)))
        .localCheckpoint(eager=False)
    )
    counts, percentiles, by_trail, deaths, failures, names, attempts = _computed(
        lambda: accuracy.counts(of_day, data_end),
        lambda: accuracy.percentiles(of_day),
        lambda: trails.by_trail(trails.with_outcome(_union(messages), ended, end)),
        lambda: retries.deaths(_union(died)),
        lambda: retries.failures(_union(one.select(*FAILURE) for one in failed), begin, end),
        lambda: events.select("destination", "publisher", "version").distinct(),
        lambda: retries.attempts(_union(tried)),
    )
    release, destination = schema.release_id(), f.xxhash64("destination")
    releases = names.select(release.alias("release_id"), "publisher", "version").distinct()
    destinations = names.select(destination.alias("destination_id"), "destination").distinct()
    by_destination = counts.join(destinations, "destination_id", "left")
    by_delay = accuracy.by_delay(counts, percentiles)
    missing = losses.with_fate(accuracy.missing(of_day, data_end), ended)
    missing = missing.localCheckpoint(eager=False)
    found = {
        "accuracy": accuracy.accuracy(by_delay),
        "uncounted": accuracy.uncounted(by_delay),
        "histogram": accuracy.histogram(by_destination),
        "hours": accuracy.by_hour(by_destination),
        "retries": retries.retries(by_trail),
        "releases": retries.releases(by_trail, releases),
        "groups": trails.groups(by_trail, failures),
        "attempts": attempts,
        "outcomes": trails.outcomes(by_trail),
        "recoveries": trails.recoveries(by_trail),
        "causes": retries.causes(failures),
        "deaths": deaths,
        "losses": losses.losses(missing),
        "unexplained": losses.unexplained(missing),
        "waits": accuracy.count_waits(counts),
    }
    if summary["dead_letters"]:
        arrived = dead_letters.read(events).localCheckpoint(eager=False)
        found["dead_letters"], found["replays"] = _computed(
            lambda: dead_letters.counts(arrived, end),
            lambda: dead_letters.replays(arrived, events, end),
        )
    if summary["probes"]:
        (found["probes"],) = _computed(lambda: probes.lateness(events, day, data_end))
    if others:
        (found["excluded"],) = _computed(lambda: losses.repeats(copies, end))
    return found


def _summary(events: DataFrame) -> dict[str, int]:
    is_malformed = f.col("is_malformed")
    waited = f.when(f.col("kind").isin("scheduled", "delivered"), f.col("requested_delay_ms"))
    is_observed = ~is_malformed & f.col("source").isin(*schema.OBSERVED)
    is_used = schema.is_traced() | losses.is_end()
    is_unplaced = is_observed & (f.col("topology") == "") & ~is_used
    is_known = f.coalesce(f.col("source").isin(*schema.KNOWN_SOURCES), f.lit(False))
    row = events.agg(
        f.count("*").alias("lines"),
        f.count_if(is_malformed).alias("malformed"),
        f.count_if("is_torn").alias("torn"),
        f.count_if(is_observed).alias("observed"),
        f.count_if(is_unplaced).alias("no_topology"),
        f.count_if(~is_malformed & ~is_known).alias("unknown_source"),
        f.count_if(is_observed & ~f.col("has_id")).alias("without_id"),
        _sources(is_observed).alias("sources"),
        f.count_if(schema.is_traced()).alias("traced"),
        f.count_if(losses.is_end()).alias("ended"),
        f.count_if(dead_letters.is_dead_letter()).alias("dead_letters"),
        f.count_if(probes.is_probe()).alias("probes"),
        f.coalesce(f.max(waited), f.lit(0)).alias("longest_delay_ms"),
    ).collect()[0]
    summary: dict[str, int] = row.asDict()
    return summary


def _sources(is_observed: Column) -> Column:
    """How many of the sources there are."""
    found = [f.max((is_observed & (f.col("source") == one)).cast("int")) for one in schema.OBSERVED]
    return reduce(Column.__add__, found)


def _computed(*makers: Callable[[], DataFrame]) -> list[DataFrame]:
    """The small frames, computed beside each other: planning a query takes one core."""
    # What adds up one partition needs no exchange.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda make: make().localCheckpoint().coalesce(1), makers))


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of all; null where a frame has not the column."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _days(first: date, before: date) -> list[date]:
    return [first + n * ONE_DAY for n in range((before - first).days)]
