"""What is read from the environment, and what is refused there with one sentence."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.db.utils import ConnectionHandler
from pytest_django import DjangoDbBlocker, Settings

from delayboard import environment
from tests.faults.odd_node import self_signed
from tests.postgres import private_cluster
from topology.database.errors import Trouble, explain

SETTINGS = Path(environment.__file__).with_name("settings.py")
OPTIONS = environment.POSTGRES_OPTIONS


@pytest.mark.parametrize(
    ("url", "values"),
    [
        (
            "postgresql://me:p%40ss@db.example.com:5433/board?sslmode=verify-full"
            "&sslrootcert=/etc/ca%20of%20us.pem&connect_timeout=7",
            {
                "NAME": "board",
                "USER": "me",
                "PASSWORD": "p@ss",
                "HOST": "db.example.com",
                "PORT": "5433",
                "OPTIONS": {
                    "sslmode": "verify-full",
                    "sslrootcert": "/etc/ca of us.pem",
                    **environment.POSTGRES_LIMITS,
                    "connect_timeout": "7",
                    "options": OPTIONS,
                },
            },
        ),
        ("postgres://me@/board?host=/run/postgresql", {"HOST": "/run/postgresql", "NAME": "board"}),
        (
            "postgres://h/b?options=-c%20jit%3Don",
            {"OPTIONS": environment.POSTGRES_LIMITS | {"options": f"{OPTIONS} -c jit=on"}},
        ),
        ("postgresql://one:1,two:2/board", {"HOST": "one,two", "PORT": "1,2"}),
        ("sqlite:////srv/a%23b.sqlite3", {"NAME": "//srv/a#b.sqlite3"}),
    ],
)
def test_each_part_of_a_database_address_is_used(url: str, values: dict[str, Any]) -> None:
    found = environment.database(url)
    assert {name: found[name] for name in values} == values


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://me:secret@h/b?ssl_mode=require", "has the unknown option “ssl_mode”."),
        ("postgresql://me:secret@h/b?sslmode", "is not a valid address."),
        ("postgresql://me:secret@[h/b", "is not a valid address."),
        ("postgresql://me:sec/ret@h/b", "has a port that is no number."),
        ("postgresql://me:secret@h", "has no name of a database."),
        ("mysql://me:secret@h/b", "begins with neither sqlite:// nor postgresql://."),
        ("sqlite:///srv/board.sqlite3?timeout=5", "of SQLite has only a path,"),
        ("sqlite:///srv/board#1.sqlite3", "of SQLite has only a path,"),
        ("sqlite://srv/board.sqlite3", "of SQLite has only a path,"),
    ],
)
def test_a_database_address_that_is_not_understood_is_refused(url: str, why: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        environment.database(url)
    assert str(refused.value).startswith(f"DATABASE_URL {why}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("BEHIND_TLS", "true", "Set 1 to enable it, or 0."),
        ("DEBUG", "no", "Set 1 to enable it, or 0."),
        ("PORT", "http", "Set a whole number from 1 to 65,535, or unset it for 8,000."),
        ("SESSION_IDLE_MINUTES", "0", "Set a number above 0, at most 525,600"),
        ("SESSION_MAX_HOURS", "nan", "Set a number above 0, at most 8,760, or unset it for 72."),
        ("KEEP_LOG_DAYS", "a month", "Set a number of days from 1 to 36,500, or “never”."),
        ("KEEP_LOG_DAYS", "0", "Set a number of days from 1 to 36,500"),
        ("KEEP_LOG_DAYS", "²", "Set a number of days from 1 to 36,500"),
        ("KEEP_LOG_DAYS", "36501", "Set a number of days from 1 to 36,500"),
        ("KEEP_PARKED_MB", "much", "Set a whole number from 0 to 10,000,000"),
        ("ALLOWED_HOSTS", "board.example.com:8000", "Set texts such as “board.example.com”"),
        ("CSRF_TRUSTED_ORIGINS", "https://a/", "Set texts such as “https://board.example.com”"),
        (
            "LOG_URL",
            "/srv/parquet",
            "Set an address that begins with file://, hdfs://, s3:// or s3a://.",
        ),
        ("EVENT_LOG", "s3a://bucket/log", "Set a folder on a local disk"),
        ("TIME_ZONE", "Berlin", "Set the name of a time zone, such as “Europe/Berlin”."),
        ("NIGHTLY_TIME_ZONE", "Mars", "Set the name of a time zone, such as “Europe/Berlin”."),
        ("EMAIL_PORT", "smtp", "Set a whole number from 1 to 65,535, or unset it for 25."),
        ("LOG_FORMAT", "xml", "Set json or text."),
        ("LOG_LEVEL", "loud", "Set DEBUG, WARNING, ERROR, CRITICAL or INFO."),
        ("TRACE_URL", "https://traces.example.com/", "Set an address such as https://traces."),
        ("TRACE_URL", "javascript:{trace_id}", "Set an address such as https://traces."),
        ("OIDC_ISSUER", "http://id.example.com", "Set an address that begins with https://."),
        ("OIDC_ISSUER", "http://localhost.example.com", "Set an address that begins with https"),
        ("REMOTE_USER_PROXIES", "proxy", "Set addresses or networks such as “10.0.0.0/8”"),
        ("SECOND_FACTOR_ROLE", "boss", "Set viewer, operator or admin, or unset it."),
    ],
)
def test_a_setting_that_is_not_understood_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured) as refused:
        read_settings()
    assert str(refused.value).startswith(f"{name} is “{value}”. {why}")


@pytest.mark.parametrize("scheme", ["s3", "S3A"])
@pytest.mark.parametrize("keys", ["AKIA:secret", "AKIA:se/cret", "secret"])
def test_a_key_in_the_address_of_a_storage_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, scheme: str, keys: str
) -> None:
    monkeypatch.setenv("LOG_URL", f"{scheme}://{keys}@bucket/log")
    with pytest.raises(ImproperlyConfigured) as refused:
        read_settings()
    assert str(refused.value).startswith("LOG_URL has a key or a password. Set the address without")
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize("url", ["s3://bucket/a@b", "hdfs://user@host:8020/a@b", "file:///a:b@c"])
def test_an_at_sign_that_ends_no_key_is_none(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("LOG_URL", url)
    assert read_settings()["LOG_URL"] == url


def test_a_level_may_be_in_lower_case_and_is_not_that_of_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At DEBUG one logs the headers of WebSockets, with their cookies."""
    monkeypatch.setenv("LOG_LEVEL", "debug")
    monkeypatch.setenv("LOG_FORMAT", "JSON")
    found = read_settings()["LOGGING"]
    assert found["handlers"]["console"]["formatter"] == "json"
    assert found["loggers"]["delayboard"]["level"] == "DEBUG"
    assert found["root"]["level"] == "INFO"


def test_passwords_are_hidden_only_beside_another_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDE_LOCAL_SIGN_IN", "1")
    with pytest.raises(ImproperlyConfigured, match="there is no other sign-in"):
        read_settings()
    monkeypatch.setenv("OIDC_ISSUER", "https://id.example.com/")
    with pytest.raises(ImproperlyConfigured, match=r"OIDC_CLIENT_ID is not\. Set both"):
        read_settings()
    monkeypatch.setenv("OIDC_CLIENT_ID", "delayboard")
    found = read_settings()
    assert (found["HIDE_LOCAL_SIGN_IN"], found["OIDC_ISSUER"]) == (True, "https://id.example.com")


def test_never_and_a_number_of_days_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEP_LOG_DAYS", " Never ")
    monkeypatch.setenv("KEEP_REPORTS_DAYS", "30")
    days = read_settings()["KEEP_DAYS"]
    assert (days["KEEP_LOG_DAYS"], days["KEEP_REPORTS_DAYS"]) == (None, 30)
    assert days["KEEP_REPLAYS_DAYS"] == 365


def read_settings() -> dict[str, Any]:
    return run_path(str(SETTINGS))


def test_an_empty_setting_is_as_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALLOWED_HOSTS", "TIME_ZONE", "LOG_URL", "NIGHTLY_CRON", "DEBUG", "PORT"):
        monkeypatch.setenv(name, "")
    found = read_settings()
    assert (found["TIME_ZONE"], found["SERVE_PORT"], found["DEBUG"]) == ("UTC", 8000, False)
    assert found["ALLOWED_HOSTS"] == ["127.0.0.1", "localhost", "[::1]"]
    monkeypatch.setenv("ALLOWED_HOSTS", ".example.com, board")
    assert read_settings()["ALLOWED_HOSTS"] == [".example.com", "board"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("DELAYBOARD_DATABASE", "x", "Delayboard has no setting DELAYBOARD_DATABASE. Correct or"),
        ("KEEP_LOGS_DAYS", "7", "Delayboard has no setting KEEP_LOGS_DAYS. Correct or unset it."),
        ("EMAIL_FROM", "a@b", "Delayboard has no setting EMAIL_FROM. Correct or unset it."),
        ("SPARK_MASTER", "spark.example.com", "Set for example spark://host:7077, or unset it."),
        ("SPARK_REMOTE", "spark://h:1", "Set for example sc://host:15002, or unset it."),
        ("SPARK_MEMORY", "2", "Set for example 2g, or unset it."),
        ("FORWARDED_ALLOW_IPS", "10.0.0.1/8", "Set addresses such as 10.0.0.5 or 10.0.0.0/8"),
    ],
)
def test_what_others_read_later_is_checked_at_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    assert run_checks() == []
    monkeypatch.setenv(name, value)
    (error,) = run_checks()
    assert why in error.msg
    assert name in error.msg


def test_a_credential_key_that_is_none_is_refused_and_not_repeated(settings: Settings) -> None:
    settings.CREDENTIAL_KEYS = ["hunter2"]
    (error,) = run_checks()
    assert error.msg.startswith("CREDENTIAL_KEYS has a key that is not 32 bytes")
    assert "hunter2" not in error.msg


def state(url: str) -> tuple[bool, str | None]:
    """Whether a connection has TLS, and the server's address; none of a socket."""
    connection = ConnectionHandler({"default": environment.database(url)})["default"]
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT ssl, inet_server_addr()::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            )
            found: tuple[bool, str | None] = cursor.fetchone()
            return found
    finally:
        connection.close()


def test_postgresql_is_connected_to_as_the_address_says(
    tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    self_signed(tmp_path)
    with django_db_blocker.unblock(), private_cluster(with_tls=True) as url:
        plain, _, query = url.partition("?")
        account, _, place = plain.partition("@")
        folder = Path(query.partition("sslrootcert=")[2]).parent
        assert state(url) == (True, "127.0.0.1/32")
        assert state(f"{plain}?sslmode=disable") == (False, "127.0.0.1/32")
        port, name = place.partition(":")[2].split("/")
        assert state(f"{account}@/{name}?host={folder}&port={port}") == (False, None)
        with pytest.raises(OperationalError) as failed:
            state(f"{plain}?sslmode=verify-full&sslrootcert={tmp_path / 'certificate.pem'}")
        assert explain(failed.value) is Trouble.NOT_ENCRYPTED
