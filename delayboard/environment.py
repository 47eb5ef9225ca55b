"""Reads settings from the environment; one that is not understood is refused with a sentence.

All functions raise ImproperlyConfigured, whose message never contains a password.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import isfinite
from typing import Any
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ImproperlyConfigured

POSTGRES = ("postgres://", "postgresql://")
# Option as psycopg calls it -> Django's name; all other options go to PostgreSQL's library.
POSTGRES_NAMES = {
    "dbname": "NAME",
    "user": "USER",
    "password": "PASSWORD",
    "host": "HOST",
    "port": "PORT",
}
# Options for many small queries: starting workers or compiling takes longer than they do.
POSTGRES_OPTIONS = "-c max_parallel_workers_per_gather=0 -c jit=off"
# Limits in seconds, and milliseconds, that end a connection to a host that is gone within half a
# minute, where Linux waits for minutes.
POSTGRES_LIMITS = {
    "connect_timeout": "5",
    "tcp_user_timeout": "20000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
DATABASE_FORMS = (
    "Set sqlite:///path, or postgresql://user:password@host:port/name?option=value with %40 for @, "
    "%2F for / and %23 for # in names and passwords."
)
HOST = r"\*|\.?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]"
ORIGIN = r"https?://(\*\.)?[A-Za-z0-9_.-]+(:\d+)?|https?://\[[0-9A-Fa-f:.]+\](:\d+)?"
LONGEST_DAYS = 36_500
STORAGE = r"[a-z][a-z0-9+.-]*://.+"
# User in an address of S3, which is an access key; the secret key may have slashes.
STORAGE_KEYS = r"(?i)s3a?://([^/]*|[^/:]*:.*)@|[^/]*//[^/]*:[^/]*@"


def refuse(name: str, next_step: str) -> ImproperlyConfigured:
    """The error about the value of a setting that is no secret."""
    return ImproperlyConfigured(f"{name} is “{os.environ.get(name, '')[:40]}”. {next_step}")


def is_enabled(name: str) -> bool:
    text = os.environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise refuse(name, "Set 1 to enable it, or 0.")
    return text == "1"


def choice(name: str, default: str, *others: str) -> str:
    """One of these, in upper or lower case."""
    text = os.environ.get(name, "").strip() or default
    found = [one for one in (default, *others) if one.lower() == text.lower()]
    if not found:
        raise refuse(name, f"Set {', '.join(others)} or {default}.")
    return found[0]


def fingerprint(*keys: str) -> str:
    """Shows whether two processes have the same keys, and nothing of them."""
    return sha256("\n".join(keys).encode()).hexdigest()[:12]


def whole_number(name: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
        next_step = f"Set a whole number from {least:,} to {most:,}, or unset it for {default:,}."
        raise refuse(name, next_step)
    return int(text)


def days(name: str, default: int) -> int | None:
    """None for “never”."""
    text = os.environ.get(name, "").strip() or str(default)
    if text.lower() == "never":
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= LONGEST_DAYS):
        raise refuse(name, f"Set a number of days from 1 to {LONGEST_DAYS:,}, or “never”.")
    return int(text)


def positive_number(name: str, default: float, most: float) -> float:
    text = os.environ.get(name, "").strip() or str(default)
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not (isfinite(number) and 0 < number <= most):
        next_step = f"Set a number above 0, at most {most:,g}, or unset it for {default:g}."
        raise refuse(name, next_step)
    return number


def texts(name: str, default: str, form: str, example: str) -> list[str]:
    """The texts between commas, each of which matches `form`."""
    found = [text.strip() for text in (os.environ.get(name) or default).split(",")]
    if not all(re.fullmatch(form, text) for text in found if text):
        raise refuse(name, f"Set texts such as “{example}” with commas between them.")
    return [text for text in found if text]


def networks(name: str) -> list[IPv4Network | IPv6Network]:
    """The addresses and networks between commas; none by default."""
    found = [text.strip() for text in os.environ.get(name, "").split(",")]
    try:
        return [ip_network(text, strict=False) for text in found if text]
    except ValueError as error:
        next_step = "Set addresses or networks such as “10.0.0.0/8” with commas between them."
        raise refuse(name, next_step) from error


def storage(name: str, default: str) -> str:
    text = os.environ.get(name) or default
    if re.match(STORAGE_KEYS, text):
        raise ImproperlyConfigured(
            f"{name} has a key or a password. Set the address without it, and the key in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if not re.fullmatch(STORAGE, text):
        raise refuse(name, "Set an address that begins with file://, hdfs://, s3:// or s3a://.")
    return text


def time_zone(name: str, default: str) -> str:
    text = os.environ.get(name) or default
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise refuse(name, "Set the name of a time zone, such as “Europe/Berlin”.") from error
    return text


def database(url: str) -> dict[str, Any]:
    """Django's settings of the database at `url`, with every option of it."""
    if url.startswith(POSTGRES):
        return _postgres(url)
    if not url.startswith("sqlite://"):
        why = "begins with neither sqlite:// nor postgresql://"
        raise ImproperlyConfigured(f"DATABASE_URL {why}. {DATABASE_FORMS}")
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or parts.path in ("", "/"):
        raise ImproperlyConfigured(
            "DATABASE_URL of SQLite has only a path, without a host or options. "
            "Set sqlite:///path, with %23 for # and %3F for ? in the path."
        )
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": unquote(parts.path), "OPTIONS": {}}


def _postgres(url: str) -> dict[str, Any]:
    """The settings of a database, as PostgreSQL's library reads the URL (“Connection URIs” in its
    documentation).
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        options: dict[str, Any] = dict(conninfo_to_dict(url))
    except ProgrammingError as error:
        # Other texts of the library repeat the address with its password.
        unknown = re.match(r'invalid URI query parameter: "([^"]{1,40})"', str(error))
        why = f"has the unknown option “{unknown[1]}”" if unknown else "is not a valid address"
        raise ImproperlyConfigured(f"DATABASE_URL {why}. {DATABASE_FORMS}") from None
    found = {ours: options.pop(theirs, "") for theirs, ours in POSTGRES_NAMES.items()}
    if not (found["NAME"] or "service" in options):
        raise ImproperlyConfigured(f"DATABASE_URL has no name of a database. {DATABASE_FORMS}")
    if not all(port.isdigit() for port in found["PORT"].split(",") if port):
        raise ImproperlyConfigured(f"DATABASE_URL has a port that is no number. {DATABASE_FORMS}")
    options = POSTGRES_LIMITS | options
    options["options"] = f"{POSTGRES_OPTIONS} {options.get('options', '')}".strip()
    return {"ENGINE": "django.db.backends.postgresql", **found, "OPTIONS": options}
