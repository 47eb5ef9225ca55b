"""Whether Delayboard works: the database, its tables, the worker, the disk and the brokers."""

from __future__ import annotations

from typing import TypeAlias

from django.conf import settings
from django.db import Error, connection

from analytics.disk import read_disk_space
from delayboard.models import BackgroundTask
from delayboard.now.system import has_no_worker
from delayboard.run_command import MIGRATE_FIRST, is_migration_missing
from topology import snapshots
from topology.database.clock import describe_skew, measure_skew
from topology.database.errors import explain
from topology.models import Broker

OK, DEGRADED, UNAVAILABLE = "ok", "degraded", "unavailable"
# Of each check "ok" or a sentence; by task and broker where there may be several.
Checks: TypeAlias = dict[str, "str | dict[str, str]"]
# Names the databases whose migrations were found applied: they stay so.
_migrated: set[str] = set()


def check_health() -> tuple[str, Checks]:
    """The status of this process, and what is wrong.

    "unavailable" while it can answer no page; "degraded" while pages work and something else does
    not, which a restart of the site would not change.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        database = str(connection.settings_dict["NAME"])
        if database not in _migrated and not is_migration_missing():
            _migrated.add(database)
    except Error as error:
        # Never the driver's own text, which may name a host or an account.
        return UNAVAILABLE, {"database": str(explain(error) or "The database does not answer.")}
    if database not in _migrated:
        return UNAVAILABLE, {"database": OK, "migrations": MIGRATE_FIRST}
    checks: Checks = {"database": OK, "migrations": OK}
    checks["clock"] = describe_skew("this host", measure_skew()) or OK
    tasks = list(BackgroundTask.objects.all())
    checks["worker"] = "The worker is not running." if has_no_worker(tasks) else OK
    checks["tasks"] = {
        task.key: task.last_error or ("No heartbeat." if task.is_late else OK) for task in tasks
    }
    disk = read_disk_space(settings.EVENT_LOG)
    checks["event_log"] = "The disk of the event log is full." if disk and disk.is_full else OK
    brokers = list(Broker.objects.all())
    silent = {broker.pk for broker in snapshots.silent(brokers)}
    checks["brokers"] = {
        broker.slug: _why(broker) if broker.pk in silent else OK for broker in brokers
    }
    is_ok = all(one == OK for one in summarize(checks).values())
    return OK if is_ok else DEGRADED, checks


def summarize(checks: Checks) -> dict[str, str]:
    """Each check as "ok" or "failing": what anybody may know."""
    return {
        name: OK
        if set(found.values() if isinstance(found, dict) else [found]) <= {OK}
        else "failing"
        for name, found in checks.items()
    }


def _why(broker: Broker) -> str:
    latest = snapshots.latest(broker.pk)
    return (latest.error if latest else "") or "The broker does not answer."
