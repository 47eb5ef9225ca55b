"""The Spark session: on this machine, or on the cluster that the environment names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from pyspark import SparkContext
from pyspark.sql import SparkSession

from analytics.jobs import class_archive, command

MIB = 1024 * 1024
# Input in bytes below which the JVM's start costs more than the work.
SMALL_INPUT_BYTES = 256 * MIB
# Input in bytes below which the JVM's optimizing compiler costs more than its code saves in one
# run.
FAST_CODE_BYTES = 640 * MIB
# Input in bytes below which compiling a query costs more than interpreting it, and one partition is
# enough.
TINY_INPUT_BYTES = 8 * MIB
PARTITION_BYTES = 256 * MIB
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
# Input in bytes below which Spark plans a query once: adaptively it would plan all of it again
# after each exchange.
PLANNED_ONCE_BYTES = 16 * 1024 * MIB
# Bounds of the heap, a quarter of the memory; what does not fit goes to the disk.
LEAST_HEAP_MIB, MOST_HEAP_MIB = 1024, 3072
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Classes of queries that Spark keeps: a day has 300, more than its default, and it would compile
# them again.
COMPILED_CLASSES = 1000
# Thresholds of the JVM's compiler, four times its own: one run uses most of its code too seldom to
# be worth optimizing.
OPTIMIZED_AFTER = {
    "Tier4InvocationThreshold": 20_000,
    "Tier4MinInvocationThreshold": 2_400,
    "Tier4CompileThreshold": 60_000,
    "Tier4BackEdgeThreshold": 160_000,
}
LOCAL = "local[*]"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Setting: where the JVM writes an archive of its classes when it ends.
CLASSES = "spark.delayboard.classes"
# Settings wherever the tasks of a session run: a run keeps what the driver prints.
DRIVER_SETTINGS = {
    "spark.log.level": "ERROR",
    # For the rows that are kept on the disk.
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryoserializer.buffer.max": "1g",
    # PySpark would report each line of ours that names a column, by several calls of the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.codegen.cache.maxEntries": str(COMPILED_CLASSES),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Setting of a session whose JVM has all its temporary files in the folder of the job.
KILLABLE = "spark.delayboard.killable"
JVM_ENDS_WITHIN_SECONDS = 10
MISSING = (
    "SPARK_REMOTE needs the packages of Spark Connect, which are missing. Run “pip install "
    "--require-hashes -r requirements-spark-connect.txt”."
)
LOG4J = Path(__file__).with_name("log4j2.properties")


def start(
    name: str, *, scratch: Path, input_bytes: int, archives_classes: bool = False
) -> SparkSession:
    """SPARK_REMOTE (Spark Connect), else SPARK_MASTER, else all cores of this machine.

    SPARK_MEMORY sets the driver's heap in local mode. Raises command.JobError.

    With `archives_classes` a local session takes half a minute of a processor more where the
    archive of classes is missing: its JVM writes it.
    """
    if remote := os.environ.get("SPARK_REMOTE"):
        try:
            spark = _builder(name).remote(remote).getOrCreate()
        except ImportError as error:
            raise command.JobError(MISSING) from error
        return tuned(spark, input_bytes)
    master = os.environ.get("SPARK_MASTER") or LOCAL
    return start_at(
        master, name, scratch=scratch, input_bytes=input_bytes, archives_classes=archives_classes
    )


@contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """Stop the session at the end; print its version, and the peak memory of a driver on this
    machine. Raises command.JobError for an error of Spark.
    """
    try:
        yield
    except (*command.SPARK_ERRORS, OSError) as error:
        raise command.JobError(_why(error)) from error
    finally:
        # A JVM that has ended fails here too, which would hide the first error.
        with suppress(*command.SPARK_ERRORS, OSError):
            command.print_progress(spark_version=spark.version, **_peak_memory(spark))
        with suppress(*command.SPARK_ERRORS, OSError):
            stop_context(spark)


def _why(error: Exception) -> str:
    if ended := _end_of_jvm(error):
        return ended
    try:
        return command.describe(error)
    except (*command.SPARK_ERRORS, OSError) as second:
        return _end_of_jvm(second) or type(error).__name__


def _end_of_jvm(error: Exception) -> str:
    """A sentence, if our JVM has ended: each call fails then, and says nothing about why."""
    jvm = None if is_remote() else _jvm()
    if jvm is None or not command.is_without_answer(error):
        return ""
    try:
        # Its connections end before it does.
        code = jvm.wait(JVM_ENDS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    if code == -signal.SIGKILL:
        return "Spark's JVM was killed. The machine may have had too little memory for it."
    return f"Spark's JVM ended with code {code}."


def _jvm() -> subprocess.Popen[bytes] | None:
    """None where it is not ours, but runs us: spark-submit."""
    process: subprocess.Popen[bytes] | None = _gateway().proc
    return process


def _gateway() -> Any:
    return SparkContext._gateway


def stop_context(spark: SparkSession) -> None:
    """Stop what runs the queries, and its JVM where that is ours."""
    if is_remote():
        spark.stop()
        return
    classes = spark.conf.get(CLASSES, None)
    is_killable = spark.conf.get(KILLABLE, None)
    # PySpark's own stop also waits up to half a second for its server of accumulators.
    context: Any = spark.sparkContext
    context._jsc.stop()
    jvm = _jvm()
    if jvm is None:
        return
    if is_killable and not classes:
        # Ending by itself takes it half a second more, to delete folders that are in `scratch`.
        # First Python's objects forget it: to release them would be logged as a failure.
        _gateway().shutdown()
        jvm.kill()
        jvm.wait()
        return
    # It ends when its input does, and writes the archive then.
    cast("IO[bytes]", jvm.stdin).close()
    if jvm.wait() == 0 and classes:
        class_archive.keep(Path(classes))


def _peak_memory(spark: SparkSession) -> dict[str, int]:
    if is_remote():
        return {}
    jvm: Any = spark.sparkContext._jvm
    status = Path(f"/proc/{jvm.ProcessHandle.current().pid()}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    return {"peak_memory_bytes": int(found[1]) * 1024} if found else {}


def is_remote() -> bool:
    """Whether the environment names a Spark Connect server, whose JVM is not ours."""
    return bool(os.environ.get("SPARK_REMOTE"))


def start_at(
    master: str, name: str, *, scratch: Path, input_bytes: int, archives_classes: bool = False
) -> SparkSession:
    """A session at this master, whatever the environment names."""
    # PySpark takes the variable before the builder's master.
    os.environ.pop("SPARK_REMOTE", None)
    settings = dict(DRIVER_SETTINGS)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _local_settings(scratch, input_bytes)
        if archive := class_archive.find():
            options, written = class_archive.options(archive, is_written=archives_classes)
            settings[JAVA_OPTIONS] += f" {options}"
            if written:
                settings[CLASSES] = str(written)
    builder = _builder(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return tuned(builder.getOrCreate(), input_bytes)


def is_tiny(input_bytes: int) -> bool:
    """Whether queries of so many bytes are interpreted, in one partition."""
    return input_bytes < TINY_INPUT_BYTES


def tuned(spark: SparkSession, input_bytes: int) -> SparkSession:
    """The session with its queries set up for so much input."""
    tiny = is_tiny(input_bytes)
    partitions = 1 if tiny else max(os.cpu_count() or 1, input_bytes // PARTITION_BYTES)
    settings = {
        "spark.sql.shuffle.partitions": str(partitions),
        # A log has many small files, and a task for each would cost more than its lines.
        "spark.sql.files.openCostInBytes": "131072",
        "spark.sql.adaptive.enabled": str(input_bytes >= PLANNED_ONCE_BYTES).lower(),
        # A task for each file only to list it: most tasks of a day were such.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        # Rows that an exchange has put together are added up by one pass, not by two.
        "spark.sql.execution.combineAdjacentAggregation": "true",
        **(INTERPRETED if tiny else COMPILED),
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    return spark


def _builder(name: str) -> SparkSession.Builder:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")


def _local_settings(scratch: Path, input_bytes: int) -> dict[str, str]:
    java = f'-Dlog4j2.configurationFile={LOG4J.as_uri()} "-Dderby.system.home={scratch}"'
    # Nobody waits for a pause, and a collector that runs beside the work costs more.
    java += f" -XX:+Use{'Serial' if input_bytes < SMALL_INPUT_BYTES else 'Parallel'}GC"
    if input_bytes < SMALL_INPUT_BYTES:
        # Room for what a short run creates, so that it is hardly ever collected; and all of the
        # heap at once: before it grows, the JVM collects all of it.
        java += f" -Xmn{LEAST_HEAP_MIB // 2}m -Xms{LEAST_HEAP_MIB}m"
    # Until its classes fill this, the JVM need not collect all garbage to make room for them.
    java += " -XX:MetaspaceSize=256m"
    if input_bytes < FAST_CODE_BYTES:
        # With one compiler the JVM keeps a fifth of the code, and warns when that is full.
        java += " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    else:
        java += "".join(f" -XX:{name}={calls}" for name, calls in OPTIMIZED_AFTER.items())
    # Spark's own classes, from packages whose hashes the installation checked.
    java += " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    # Our lines alone are on the standard output.
    java += " -Xlog:disable -Xlog:all=warning:stderr"
    killable = {}
    # The JVM loads libraries from its temporary folder.
    if not os.statvfs(scratch).f_flag & os.ST_NOEXEC:
        java += f' "-Djava.io.tmpdir={scratch}"'
        killable = {KILLABLE: "true"}
    return {
        **killable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": os.environ.get("SPARK_MEMORY") or f"{heap_mib(input_bytes)}m",
        JAVA_OPTIONS: java,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


def heap_mib(input_bytes: int) -> int:
    """The heap that this machine, or the container it is, can give to so much input, in MiB."""
    if input_bytes < SMALL_INPUT_BYTES:
        return LEAST_HEAP_MIB
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        memory = min(memory, int(CGROUP_LIMIT.read_text()))
    return min(max(memory // 4 // MIB, LEAST_HEAP_MIB), MOST_HEAP_MIB)
