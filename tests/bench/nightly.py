"""The figures of one day by Spark, beside DuckDB that computes the same from the same lines.

BENCH_EVENTS says of how many events, 2 million by default, 0 of none. The session is warm: each
time is the best of RUNS, or of more until the JVM hardly compiles. At the end every figure of
messages with an id is compared. Before, nightly runs of few lines, each with the start of Spark.
BENCH_FRESH says of how many events runs are measured as a night has them: a fresh process, from
lines, with compaction.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import orjson
from pyspark.sql import SparkSession

from analytics import compacted, launch
from analytics.buckets import DELAY_EDGES_MS, EDGES_MS
from analytics.jobs import __main__, compaction, session
from analytics.jobs.day import figures
from analytics.jobs.tables.losses import MOST_IDS
from tests.bench.event_day import DAY, DAY_US, HOUR_US, WITHOUT_ID, write_day
from tests.bench.figures import say

EVENTS = int(os.environ.get("BENCH_EVENTS", "2000000"))
# The JVM compiles code that a run has used. A session is warm once that takes less than this share
# of a run's processor time, which takes more than five runs.
RUNS, MOST_RUNS, WARM_SHARE = 5, 12, 0.05
FRESH = [int(text) for text in os.environ.get("BENCH_FRESH", "1000000,5000000").split(",") if text]
# Issue 46: the seconds of a run, and how many times DuckDB it may take without the start of Spark.
WANTED = {1_000_000: (20, 12), 5_000_000: (60, 8), 50_000_000: (480, 6)}
STARTING = ("Starting the job", "Starting Spark")
LINES_AT_MOST, COMPACTION_AT_MOST, PARQUET_AT_MOST = 9, 7, 4
COLD_EVENTS, COLD_SECONDS_AT_MOST, COLD_RUNS = 168, 10, 3
NOW = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC) + timedelta(days=2)
Rows = dict[str, list[tuple[Any, ...]]]
COLUMNS = {
    "accuracy": "topology requested_delay_ms measured missing "
    "p50_ms p95_ms p99_ms max_ms early_share",
    "histogram": "topology delay_bucket hour_at bucket messages",
    "retries": "topology messages retried",
    "attempts": "topology attempt messages",
    "hours": "topology destination hour_at entered delivered waiting missing",
    "losses": "topology destination fate messages",
    "unexplained": "topology key",
    "causes": "topology queue reason exception_type routing_key messages",
    "outcomes": "topology first last outcome messages",
    "recoveries": "topology bucket messages",
    "groups": "topology dimension value first last outcome messages",
    "releases": "topology publisher version messages retried",
}


def measure(folder: Path) -> None:
    logging.getLogger("py4j").setLevel(logging.WARNING)
    measure_cold_start(folder / "cold", compacts=False)
    measure_cold_start(folder / "compacted", compacts=True)
    for events in FRESH:
        measure_fresh(folder / f"fresh-{events}", events)
    if not EVENTS:
        return
    log = folder / "log"
    lines = write_day(log, EVENTS)
    size = sum(path.stat().st_size for path in log.glob("date=*/*/*.jsonl"))
    spark = session.start_at(session.LOCAL, "bench", scratch=folder, input_bytes=size)
    try:
        _measure(spark, folder, log, lines, size)
    finally:
        spark.stop()


def measure_cold_start(folder: Path, *, compacts: bool) -> None:
    """A whole nightly run of few lines: the start of Spark, and figures."""
    runs: list[tuple[float, launch.JobReport]] = []
    for number in range(COLD_RUNS):
        own, job = folder / str(number), launch.JobReport()
        lines = write_day(own / "log", COLD_EVENTS)
        began = time.perf_counter()
        launch.run_day(
            own / "log",
            DAY,
            f"file://{own}/results",
            pulse=lambda *_: None,
            job=job,
            compact_to=f"file://{own}/parquet" if compacts else "",
        )
        runs.append((time.perf_counter() - began, job))
    seconds, job = min(runs, key=itemgetter(0))
    every = ", ".join(f"{took:.1f}" for took, _ in runs)
    steps = ", ".join(f"{name} {took:.1f}" for name, took in job.steps)
    what = "the same with their compaction" if compacts else f"figures of {lines} lines"
    note = f"at most {COLD_SECONDS_AT_MOST}; the best of {every}; {steps}"
    say(f"Cold start, {what}, s", seconds, note)


def measure_fresh(folder: Path, events: int) -> None:
    """A nightly run of a day in a process of its own, from lines and with compaction, beside DuckDB
    without the start. On a busy machine only the processor time can be compared.
    """
    log, job = folder / "log", launch.JobReport()
    lines = write_day(log, events)
    expected: Rows = {}
    duck, duck_cpu = best_of([os.getpid()], lambda: expected.update(by_duckdb(log)), runs=2)
    began, used = time.perf_counter(), _children_seconds()
    found = launch.run_day(
        log,
        DAY,
        f"file://{folder}/results",
        pulse=lambda *_: None,
        job=job,
        compact_to=f"file://{folder}/parquet",
    )
    seconds, used = time.perf_counter() - began, _children_seconds() - used
    compare({name: picked(name, found.tables[name]) for name in COLUMNS}, expected)
    start = sum(took for name, took in job.steps if name in STARTING)
    wanted, most = WANTED.get(events, ("?", "?"))
    steps = ", ".join(f"{name} {took:.1f}" for name, took in job.steps)
    say(
        f"Fresh process, {lines:,} lines with compaction, s",
        seconds,
        f"wanted {wanted}; without the start of {start:.1f} s {(seconds - start) / duck:.1f} times "
        f"DuckDB, wanted {most}; {used:.1f} s of processors, {used / duck_cpu:.1f} times; "
        f"{(job.peak_memory_bytes or 0) / 1e9:.1f} GB; {steps}",
    )
    shutil.rmtree(folder)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _measure(spark: SparkSession, folder: Path, log: Path, lines: int, size: int) -> None:
    expected: Rows = {}
    found: list[Rows] = []
    jvm: Any = spark.sparkContext._jvm
    pids = [os.getpid(), int(jvm.ProcessHandle.current().pid())]
    duck, duck_cpu = best_of(pids, lambda: expected.update(by_duckdb(log)))
    what = f"{lines:,} lines, {size / 1e9:.1f} GB"
    say("DuckDB from JSON lines, s", duck, f"{what}; {duck_cpu:.1f} s of processors")

    def compiled() -> float:
        beans = jvm.java.lang.management.ManagementFactory
        return float(beans.getCompilationMXBean().getTotalCompilationTime()) / 1000

    def measure_spark(name: str, act: Callable[[], None], most: int) -> None:
        took, cpu = best_of(pids, act, compiled=compiled)
        ratio = f"{took / duck:.1f} times DuckDB, at most {most}"
        say(f"Spark, {name}", took, f"{ratio}; {cpu / duck_cpu:.1f} times its processor time")

    def compute() -> None:
        found.append(by_spark(spark, log, folder, size))

    measure_spark("figures from JSON lines, s", compute, LINES_AT_MOST)

    def compact() -> None:
        session.tuned(spark, size)
        for day in (DAY, DAY + timedelta(days=1)):
            (log / f"date={day}" / compacted.MANIFEST).unlink(missing_ok=True)
            hours = compacted.finished(log, day, NOW + timedelta(days=1))
            compaction.compact(spark, log, day, f"file://{folder}/parquet", hours)

    measure_spark("compaction, s", compact, COMPACTION_AT_MOST)
    assert not compacted.input_of(log, DAY).files
    measure_spark("figures from Parquet, s", compute, PARQUET_AT_MOST)
    for rows in found:
        compare(rows, expected)


def best_of(
    pids: Sequence[int],
    act: Callable[[], None],
    *,
    compiled: Callable[[], float] = lambda: 0,
    runs: int = RUNS,
) -> tuple[float, float]:
    """Seconds, and seconds of processors that these processes took: on a busy machine only the
    second can be compared. `compiled` has the seconds that the JVM compiled code until now.
    """
    times: list[tuple[float, float]] = []
    is_warm = False
    while len(times) < runs or (not is_warm and len(times) < MOST_RUNS):
        began, used, compiled_before = time.perf_counter(), _processor_seconds(pids), compiled()
        act()
        used = _processor_seconds(pids) - used
        is_warm = compiled() - compiled_before < WARM_SHARE * used
        times.append((time.perf_counter() - began, used))
    return min(took for took, _ in times), min(used for _, used in times)


def _processor_seconds(pids: Sequence[int]) -> float:
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


def by_spark(spark: SparkSession, log: Path, folder: Path, size: int) -> Rows:
    """Computed and written as Parquet and lines, as a nightly run does."""
    session.tuned(spark, size)
    found = figures(spark, log, DAY, now=NOW, parking={}, step=lambda _: None)
    computed = __main__.compute(spark, found.tables)
    __main__.write(computed, f"file://{folder}/results", DAY, folder)
    # A nightly run has a session of its own, whose memory ends with it.
    for rdd in spark.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist()
    return {
        table: picked(
            table, map(orjson.loads, (folder / f"{table}.jsonl").read_bytes().splitlines())
        )
        for table in COLUMNS
    }


def picked(table: str, rows: Any) -> list[tuple[Any, ...]]:
    """The rows of messages with an id, in the columns that DuckDB computes."""
    names = COLUMNS[table].split()
    return [
        tuple(str(row[name])[:19] if name == "hour_at" else row[name] for name in names)
        for row in rows
        if row["topology"] != f"t{WITHOUT_ID:02}"
    ]


def compare(found: Mapping[str, Sequence[Any]], expected: Mapping[str, Sequence[Any]]) -> None:
    for table in expected:
        ours, theirs = (sorted(rows[table], key=str) for rows in (found, expected))
        assert len(ours) == len(theirs), (table, len(ours), len(theirs))
        for one, other in zip(ours, theirs, strict=True):
            for a, b in zip(one, other, strict=True):
                is_near = isinstance(a, float) and b is not None and abs(a - b) <= 1e-9 * abs(b)
                assert a == b or is_near, (table, one, other)


def by_duckdb(log: Path) -> Rows:
    """The figures of each table of COLUMNS, in those columns."""
    begin = int(datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC).timestamp()) * 10**6
    edges, delays = list(EDGES_MS), list(DELAY_EDGES_MS)
    end = begin + DAY_US
    with duckdb.connect() as database:
        database.execute("set threads to 2")
        database.execute(
            f"""
            create temp table lines as
            select kind, topology, message_id, requested_delay_ms as delay, attempt, death_reason,
                death_queue, redelivered, epoch_us(recorded_at) as us,
                case when kind = 'scheduled' and death_reason <> ''
                    then failures[1].count end as deaths
            from read_json('{log}/date=*/hour=*/*.jsonl', format = 'newline_delimited',
                hive_partitioning = false, columns = {{
                kind: 'varchar', recorded_at: 'timestamp', topology: 'varchar',
                message_id: 'varchar', requested_delay_ms: 'bigint', attempt: 'bigint',
                death_reason: 'varchar', death_queue: 'varchar', redelivered: 'boolean',
                failures: 'struct(count bigint)[]'}})
            where message_id <> '';
            create temp table attempts as
            select topology, message_id, attempt,
                max(delay) as delay, max(deaths) as deaths, any_value(death_queue)
                    filter (kind = 'scheduled') as queue,
                max(us) filter (kind = 'scheduled' and not redelivered) as entered,
                max(us) filter (kind = 'delivered') as left_,
                bool_or(kind = 'scheduled' and us between {begin} and {begin} + 86399999999
                    or kind = 'delivered' and us - delay * 1000 between {begin}
                    and {begin} + 86399999999) as is_counted,
                bool_or(kind = 'scheduled' and death_reason <> '' and us between {begin}
                    and {begin} + 86399999999 or attempt > 1 and (kind = 'delivered' and
                    us - delay * 1000 between {begin} and {begin} + 86399999999))
                    as is_retried,
                min(us - if(kind = 'delivered', delay * 1000, 0)) filter (us -
                    if(kind = 'delivered', delay * 1000, 0) between {begin}
                    and {begin} + 86399999999) as first_us,
                bool_or(kind = 'scheduled' and us between {begin} and {begin} + 86399999999)
                    as has_entered
            from lines group by all;
            create temp table late as
            select *, (left_ - entered - delay * 1000) / 1000 as ms from attempts
            where coalesce(entered, left_ - delay * 1000) between {begin} and {begin} + 86399999999;
            create temp table messages as
            select topology, message_id, bool_or(is_retried) as retried
            from attempts where is_counted group by all;
            create temp table trails as with {_trails(end)} select * from trails;
            """
        )
        queries = {
            "accuracy": f"""select topology, delay, count(ms), count(*) filter (left_ is null),
                {_percentile(0.5)}, {_percentile(0.95)}, {_percentile(0.99)}, max(ms),
                avg((ms < -50)::int) from late group by all""",
            "histogram": f"""select topology, len(list_filter({delays}, lambda e: e <= delay)),
                strftime(make_timestamp(entered // 3600000000 * 3600000000), '%Y-%m-%dT%H:%M:%S'),
                len(list_filter({edges}::double[], lambda e: e <= ms)), count(*)
                from late where ms is not null group by all""",
            "retries": """select topology, count(*), count(*) filter (retried) from messages
                group by all""",
            "attempts": """select topology, attempt, count(*) from attempts where is_retried
                group by all""",
        }
        queries |= {
            "hours": f"""select topology, topology, {_hour("entered")}, count(*), count(left_), 0,
                count(*) filter (left_ is null) from late group by all""",
            "losses": """select topology, topology, 'unexplained', count(*) from late
                where left_ is null group by all""",
            "unexplained": f"""select topology, message_id from late where left_ is null
                qualify row_number() over (partition by topology
                order by entered + delay * 1000, message_id) <= {MOST_IDS}""",
            "causes": """select topology, queue, 'rejected', 'TimeoutError', 't{n}', count(*)
                from attempts where has_entered and queue <> '' group by all""",
            "outcomes": """select topology, first, last, outcome, count(*) from trails
                group by all""",
            "recoveries": f"""select topology,
                len(list_filter({edges}::double[], lambda e: e <= (out_us - began_us) / 1000)),
                count(*) from trails where outcome = 'left' group by all""",
            "groups": """with each as (select *, unnest([
                {'name': 'queue', 'value': topology}, {'name': 'reason', 'value': 'rejected'},
                {'name': 'exception', 'value': 'TimeoutError'},
                {'name': 'routing key', 'value': 't{n}'},
                {'name': 'publisher', 'value': 'shop'}]) as one from trails)
                select topology, one.name, one.value, first, last, outcome, count(*)
                from each group by all""",
            "releases": """select topology, 'shop', null, count(*), count(*) filter (retried)
                from messages group by all""",
        }
        return {name: database.execute(query).fetchall() for name, query in queries.items()}


def _percentile(share: float) -> str:
    """Null of too few messages for one above it."""
    return f"if(round(count(ms) * {1 - share}, 6) >= 1, quantile_cont(ms, {share}), null)"


def _hour(us: str) -> str:
    start = f"make_timestamp({us} // {HOUR_US} * {HOUR_US})"
    return f"strftime({start}, '%Y-%m-%dT%H:%M:%S')"


def _trails(end: int) -> str:
    """Retried messages by their attempts that began before the end of the day."""
    is_of_day = f"least(entered, left_) < {end}"
    return f"""found as (
        select topology, min(attempt) filter ({is_of_day}) as first,
            max(attempt * 2 + coalesce(left_ < {end}, false)::int) filter ({is_of_day}) as twice,
            min(least(entered, left_ - delay * 1000)) filter ({is_of_day}) as began_us,
            max(left_) filter (left_ < {end}) as out_us,
            bool_or(greatest(entered, left_) >= {end}) as is_continued
        from attempts where queue <> '' group by topology, message_id
    ), trails as (
        select topology, first, began_us, out_us,
            if(is_continued or twice % 2 = 0, 'open', 'left') as outcome,
            twice // 2 - (twice % 2 = 0)::int as last
        from found where first is not null
    )"""
