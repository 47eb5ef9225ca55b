"""Shared fixtures, and `--postgres`: the database tests on a PostgreSQL of their own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from tests.brokers import NEWEST, broker_node, generations, newest_node, vhost
from tests.postgres import private_cluster

if TYPE_CHECKING:
    from tests.analytics.warm_spark import RunModule

__all__ = ["broker_node", "newest_node", "vhost"]

CHEAP_HASHER = "django.contrib.auth.hashers.MD5PasswordHasher"
IS_MUTATED = "MUTANT_UNDER_TEST" in os.environ
# How many examples each law has; --hypothesis-profile chooses. A busy machine is no failure, and
# mutmut runs pytest several times in one process.
for profile, number in (("few", 30), ("full", 200)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=number,
        deadline=None,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            *([hypothesis.HealthCheck.differing_executors] if IS_MUTATED else []),
        ],
    )
hypothesis.settings.load_profile("few")
PERMISSIONS = "django.contrib.auth.management.create_permissions"
DATABASE_FIXTURES = {"db", "transactional_db", "django_db_serialized_rollback"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --postgres and --screenshots."""
    parser.addoption(
        "--postgres",
        action="store_true",
        help="run the tests that use the database, but no browser, on a private PostgreSQL",
    )
    parser.addoption(
        "--screenshots", type=Path, help="keep a picture of each browser test's last page here"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run pytest again with the cluster's address: settings are read before any hook of ours."""
    if not config.getoption("postgres") or os.environ.get("PRIVATE_CLUSTER"):
        return None
    with private_cluster() as url:
        variables = {**os.environ, "DATABASE_URL": url, "PRIVATE_CLUSTER": "1"}
        developing = ["-X", "dev"] if sys.flags.dev_mode else []
        command = [sys.executable, *developing, "-m", "pytest", *config.invocation_params.args]
        return subprocess.call(command, env=variables, cwd=config.invocation_params.dir)


def pytest_configure(config: pytest.Config) -> None:
    """Make what whitenoise warns about when it is absent, and leave out what no test is about.

    That is what hashing a password costs, a third of a second and more; what a power cut leaves
    of a file of SQLite; the permissions and content types of Django's admin, made anew after each
    test that empties the tables; the files of a table that PostgreSQL truncates, some hundred for
    all of them; what a sign-in writes beside its session; a look at all static files by each
    client.
    """
    from django.conf import settings
    from django.contrib.contenttypes.management import create_contenttypes
    from django.db.models.signals import post_migrate
    from django.test import Client

    from tests import session_rows

    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
    settings.WHITENOISE_AUTOREFRESH = True
    # mutmut runs pytest several times in one process.
    is_first = CHEAP_HASHER not in settings.PASSWORD_HASHERS
    assert post_migrate.disconnect(dispatch_uid=PERMISSIONS) == is_first
    assert post_migrate.disconnect(create_contenttypes) == is_first
    if is_first:
        settings.PASSWORD_HASHERS = [CHEAP_HASHER, *settings.PASSWORD_HASHERS]
    Client.force_login = session_rows.force_login  # type: ignore[assignment]
    if config.getoption("postgres"):
        from tests.postgres import delete_rows

        delete_rows()
    options = settings.DATABASES["default"]["OPTIONS"]
    if "init_command" in options:
        options["init_command"] = options["init_command"].replace("=FULL", "=OFF")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with a broker on the generations of RabbitMQ that tests/brokers.py says."""
    if "broker_node" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("generations")
    if marker is None and "real_broker" not in metafunc.definition.path.parts:
        return
    names = marker.args if marker else (NEWEST,)
    is_only = marker is not None and marker.kwargs.get("only", False)
    chosen = names if is_only else generations(*names)
    metafunc.parametrize("broker_node", chosen, indirect=True, scope="session")


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Make the test database, and drop it when the session ends."""
    from asgiref.sync import SyncToAsync
    from django.db import connections
    from django.test.utils import teardown_databases

    from tests import migrated

    with django_db_blocker.unblock():
        made = migrated.set_up()
    yield
    with django_db_blocker.unblock():
        # The thread of asynchronous tests keeps its connection.
        SyncToAsync.single_thread_executor.submit(connections.close_all).result()
        teardown_databases(made, verbosity=0)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunModule]:
    """In the place of launch.run_module: runs jobs in one Spark, which the first one starts.

    A fixture that a second conftest imports would be a second one, with a Spark of its own.
    """
    from tests.analytics import warm_spark

    with warm_spark.started(tmp_path_factory.mktemp("spark")) as run_module:
        yield run_module


@pytest.fixture(autouse=True)
def _forget_time_zone() -> None:
    """A request activates the zone of its user for its thread, which is that of the next test."""
    timezone.deactivate()


@pytest.fixture(autouse=True)
def _forget_content_types() -> None:
    """A test makes those it needs, and the next one has empty tables."""
    from django.contrib.contenttypes.models import ContentType

    ContentType.objects.clear_cache()


@pytest.fixture(autouse=True)
def _forget_snapshots() -> None:
    """Forget what an earlier test learned of a broker, or still asks one: keys are used again."""
    from topology import snapshots

    with snapshots._guard:
        snapshots._latest.clear()
        snapshots._polls.clear()


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of every search for garbage: a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --postgres, keep the tests that use the database: no browser, the newest broker.

    The browser's tests come last in any order: from its start on Playwright keeps an event loop
    running in this thread, in which no asynchronous test can run. Hence after pytest's own
    sorting by fixtures (trylast).
    """
    items.sort(key=in_browser)
    with_postgres = config.getoption("postgres")
    kept = [item for item in items if (is_for_postgres if with_postgres else is_for_any)(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def is_for_any(item: pytest.Item) -> bool:
    """Tell whether the test can run on SQLite."""
    return item.get_closest_marker("postgres") is None


def is_for_postgres(item: pytest.Item) -> bool:
    """Tell whether the test could go otherwise on another database."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return (
        uses_database(item)
        and item.get_closest_marker("sqlite") is None
        and not in_browser(item)
        and {parameters.get(name, NEWEST) for name in ("broker_node", "node")} == {NEWEST}
    )


def uses_database(item: pytest.Item) -> bool:
    """Tell whether the test is marked for the database, asks for it, or is one of Django's own."""
    from django.test import TransactionTestCase

    fixtures = set(getattr(item, "fixturenames", ()))
    is_djangos = issubclass(getattr(item, "cls", None) or object, TransactionTestCase)
    is_marked = item.get_closest_marker("django_db") is not None
    return is_marked or is_djangos or bool(DATABASE_FIXTURES & fixtures)


def in_browser(item: pytest.Item) -> bool:
    """Tell whether the test lies in tests/browser, or asks for the browser."""
    is_there = "browser" in item.path.relative_to(Path(__file__).parent).parts
    return is_there or "browser" in getattr(item, "fixturenames", ())
