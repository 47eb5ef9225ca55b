"""Settings, read from the environment; what is secret is made once and kept in VAR."""

from __future__ import annotations

import os
import re
import secrets
from datetime import datetime, timedelta
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.core.exceptions import ImproperlyConfigured

from delayboard import environment
from delayboard.environment import (
    HOST,
    ORIGIN,
    choice,
    days,
    is_enabled,
    networks,
    positive_number,
    refuse,
    storage,
    texts,
    time_zone,
    whole_number,
)

BASE_DIR = Path(__file__).resolve().parent.parent
# Whether the source is here; else Delayboard was installed as a package.
IS_CHECKOUT = (BASE_DIR / "manage.py").is_file()
_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "delayboard"
VAR = Path(
    os.environ.get("DELAYBOARD_VAR") or (BASE_DIR / "var" if IS_CHECKOUT else _DATA)
).resolve()
EVENT_LOG = Path(os.environ.get("EVENT_LOG") or VAR / "log")
if "://" in os.environ.get("EVENT_LOG", ""):
    raise refuse("EVENT_LOG", "Set a folder on a local disk, such as /var/lib/delayboard/log.")
LOG_URL = storage("LOG_URL", f"file://{VAR / 'parquet'}")
# Place to which finished hours are moved; "" where this machine alone has its log.
SHARED_LOG_URL = LOG_URL if os.environ.get("LOG_URL") else ""
# Place of the Parquet. Spark cannot write to s3:// by that name, so it stays here.
PARQUET_URL = f"file://{VAR / 'parquet'}" if LOG_URL.startswith("s3://") else LOG_URL
RESULTS_URL = storage("RESULTS_URL", f"file://{VAR / 'results'}")

# Seconds for which a connection is kept: to open SQLite takes as long as a page that is rendered
# already.
CONNECTION_SECONDS = 60
YEAR_HOURS = 365 * 24


def _stored_secret(name: str, make: Any) -> str:
    """The secret in VAR/<name>, made at the first start and readable by its owner only."""
    path = VAR / name
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        VAR.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = VAR / f"{name}.{os.getpid()}"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(make())
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_text().strip()


def _database(url: str) -> dict[str, Any]:
    found = {**environment.database(url), "CONN_MAX_AGE": CONNECTION_SECONDS}
    if found["ENGINE"].endswith("postgresql"):
        return {**found, "CONN_HEALTH_CHECKS": True}
    return {
        **found,
        # A deferred transaction that reads and then writes fails at once with
        # "database is locked" in any mode; IMMEDIATE waits instead.
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            # With less than FULL a power cut takes back commits after which messages were
            # acknowledged or published (sqlite.org/pragma.html#pragma_synchronous).
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;",
        },
        # A file, since threads of a database in memory lock each other's tables.
        "TEST": {"NAME": VAR / f"test-{os.getpid()}.sqlite3"},
    }


def _encryption_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()


def _signing_key() -> str:
    return secrets.token_urlsafe(64)


SECRET_KEY = os.environ.get("SECRET_KEY") or _stored_secret("signing_key", _signing_key)
# The first key encrypts, all of them decrypt: put a new one in front to rotate.
CREDENTIAL_KEYS = (
    os.environ.get("CREDENTIAL_KEYS") or _stored_secret("credential_keys", _encryption_key)
).split()
# Shows whether the processes of all hosts have the same keys.
KEYS_FINGERPRINT = environment.fingerprint(SECRET_KEY, *CREDENTIAL_KEYS)
DEBUG = is_enabled("DEBUG")
ALLOWED_HOSTS = texts("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]", HOST, "board.example.com")
CSRF_TRUSTED_ORIGINS = texts("CSRF_TRUSTED_ORIGINS", "", ORIGIN, "https://board.example.com")
# Address of the site, to which alerts link.
SITE_URL = CSRF_TRUSTED_ORIGINS[0].rstrip("/") if CSRF_TRUSTED_ORIGINS else ""

INSTALLED_APPS = [
    # The admin's pages are loaded by urls.py: no command needs them.
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "axes",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "topology",
    "analytics",
    "delayboard",
]
MIDDLEWARE = [
    "delayboard.views.monitoring.MonitoringMiddleware",
    # Files and pages; Django hides the length of a compressed page by random bytes.
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "delayboard.middleware.SecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # django-allauth keeps the request for its forms and adapters.
    "allauth.account.middleware.AccountMiddleware",
    "delayboard.sign_in.remote_user.ProxyUserMiddleware",
    "delayboard.middleware.SessionUseMiddleware",
    "delayboard.sign_in.second_factor.SecondFactorMiddleware",
    "delayboard.middleware.TimeZoneMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "delayboard.middleware.GrantsMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    # After the others: its page for a refused sign-in is drawn like every page.
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "delayboard.urls"
ASGI_APPLICATION = "delayboard.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / ("templates" if IS_CHECKOUT else "delayboard/templates")],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["delayboard.templatetags.delayboard"],
        },
    }
]
DATABASES = {
    "default": _database(
        os.environ.get("DATABASE_URL") or f"sqlite://{quote(str(VAR))}/delayboard.sqlite3"
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "delayboard.sign_in.remote_user.ProxyUserBackend",
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "now"
LOGOUT_REDIRECT_URL = "login"

LANGUAGE_CODE = "en"
# There is one language, and to ask for it took a fiftieth of each page.
USE_I18N = False
TIME_ZONE = time_zone("TIME_ZONE", "UTC")
USE_TZ = True

_plotly = find_spec("plotly")
assert _plotly is not None
assert _plotly.origin is not None
STATIC_URL = "/static/"
STATIC_ROOT = VAR / "static"
STATICFILES_DIRS = [("plotly", Path(_plotly.origin).parent / "package_data")]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# Failed sign-ins: the rules and their limits are in delayboard/sign_in/throttle.py.
AXES_HANDLER = "delayboard.sign_in.throttle.Throttle"
AXES_LOCKOUT_PARAMETERS = "delayboard.sign_in.throttle.rules"
AXES_LOCKOUT_CALLABLE = "delayboard.sign_in.throttle.show_locked"
AXES_CLIENT_IP_CALLABLE = "topology.audit.client_address"
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_ENGINE = "delayboard.sign_in.sessions"
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
# Seconds until a session ends without use, and altogether.
SESSION_COOKIE_AGE = ceil(positive_number("SESSION_IDLE_MINUTES", 480, YEAR_HOURS * 60) * 60)
SESSION_MAX_HOURS = positive_number("SESSION_MAX_HOURS", 72, YEAR_HOURS)
# Days after the last sign-in for which tokens of people without a password here hold: nobody else
# says when they leave.
TOKEN_SIGN_IN_DAYS = positive_number("TOKEN_SIGN_IN_DAYS", 30, 366)
BEHIND_TLS = is_enabled("BEHIND_TLS")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = BEHIND_TLS
if BEHIND_TLS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = YEAR_HOURS * 3600
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    # Browsers' lists are of whole domains: to enter one is up to the domain's owner.
    SILENCED_SYSTEM_CHECKS = ["security.W021"]

# Sign-in: docs/sign-in.md. By a password, by a provider of OpenID Connect, or by a proxy.
OIDC_ISSUER = os.environ.get("OIDC_ISSUER", "").strip().rstrip("/")
OIDC_NAME = os.environ.get("OIDC_NAME", "").strip() or "single sign-on"
OIDC_GROUPS_CLAIM = os.environ.get("OIDC_GROUPS_CLAIM", "").strip() or "groups"
OIDC_CLIENT_ID = os.environ.get("OIDC_CLIENT_ID", "").strip()
OIDC_SCOPES = texts("OIDC_SCOPES", "openid,profile,email", r"\S+", "openid,profile,email,groups")
REMOTE_USER_PROXIES = networks("REMOTE_USER_PROXIES")
REMOTE_USER_HEADER = os.environ.get("REMOTE_USER_HEADER", "").strip() or "Remote-User"
REMOTE_USER_GROUPS_HEADER = (
    os.environ.get("REMOTE_USER_GROUPS_HEADER", "").strip() or "Remote-Groups"
)
REMOTE_USER_SIGN_OUT_URL = os.environ.get("REMOTE_USER_SIGN_OUT_URL", "").strip()
HIDE_LOCAL_SIGN_IN = is_enabled("HIDE_LOCAL_SIGN_IN")
SECOND_FACTOR_ROLE = os.environ.get("SECOND_FACTOR_ROLE", "").strip().lower()
# An ID token that comes over TLS from the provider itself needs no check of its signature.
if OIDC_ISSUER and not re.fullmatch(
    r"https://\S+|http://(127\.0\.0\.1|localhost)(:\d+)?(/\S*)?", OIDC_ISSUER
):
    raise refuse("OIDC_ISSUER", "Set an address that begins with https://.")
if OIDC_ISSUER and not OIDC_CLIENT_ID:
    raise ImproperlyConfigured("OIDC_ISSUER is set and OIDC_CLIENT_ID is not. Set both.")
if HIDE_LOCAL_SIGN_IN and not (OIDC_ISSUER or REMOTE_USER_PROXIES):
    raise ImproperlyConfigured(
        "HIDE_LOCAL_SIGN_IN is 1, and there is no other sign-in. Set OIDC_ISSUER or "
        "REMOTE_USER_PROXIES, or unset it."
    )
if SECOND_FACTOR_ROLE not in ("", "viewer", "operator", "admin"):
    raise refuse("SECOND_FACTOR_ROLE", "Set viewer, operator or admin, or unset it.")
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "APPS": [
            {
                "provider_id": "company",
                "name": OIDC_NAME,
                "client_id": OIDC_CLIENT_ID,
                "secret": os.environ.get("OIDC_CLIENT_SECRET", ""),
                "settings": {"server_url": OIDC_ISSUER, "oauth_pkce_enabled": True},
            }
        ]
        if OIDC_ISSUER
        else [],
        "SCOPE": OIDC_SCOPES,
    }
}
SOCIALACCOUNT_ADAPTER = "delayboard.sign_in.provider.ProviderAdapter"
# The button is a link: a form could not be redirected to another host by our CSP. The state and
# PKCE protect what comes back.
SOCIALACCOUNT_LOGIN_ON_GET = True
SOCIALACCOUNT_AUTO_SIGNUP = True
SOCIALACCOUNT_EMAIL_VERIFICATION = ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_ADAPTER = "delayboard.sign_in.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_UNIQUE_EMAIL = False
# Failures of passwords and of codes are counted by django-axes alone: DECISIONS.md.
ACCOUNT_RATE_LIMITS = MFA_RATE_LIMITS = False
MFA_ADAPTER = "delayboard.sign_in.second_factor.SecondFactorAdapter"
MFA_FORMS = {
    "authenticate": "delayboard.sign_in.second_factor_forms.CodeForm",
    "reauthenticate": "delayboard.sign_in.second_factor_forms.RepeatedCodeForm",
    "add_webauthn": "delayboard.sign_in.second_factor_forms.PasskeyForm",
    "login_webauthn": "delayboard.sign_in.second_factor_forms.PasskeySignInForm",
}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_TOTP_ISSUER = "Delayboard"
MFA_TOTP_TOLERANCE = 1
# Browsers refuse passkeys without TLS but on localhost.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not BEHIND_TLS

# With it nothing changes a broker; a switch in the browser does the same for a time.
READ_ONLY = is_enabled("READ_ONLY")

# Who may read /metrics: nobody while neither is set.
METRICS_TOKEN = os.environ.get("METRICS_TOKEN", "").strip()
METRICS_ALLOW_IPS = networks("METRICS_ALLOW_IPS")
METRICS_DETAILS = is_enabled("METRICS_DETAILS")

# Most bytes of a form: a body of 8 MB grows when it is encoded.
DATA_UPLOAD_MAX_MEMORY_SIZE = 32 * 1024 * 1024

# Largest log in MB that the page Imports takes; the command has no limit.
IMPORT_MB = whole_number("IMPORT_MB", 1024, 1, 1024 * 1024)


# Most unconfirmed messages of one queue or replay in flight: what one kill may duplicate. The
# default is measured: docs/replay.md.
MESSAGES_IN_FLIGHT = whole_number("MESSAGES_IN_FLIGHT", 1000, 1, 10_000)

# Days until data is deleted, None for never; the retention of other data is fixed.
KEEP_DAYS = {
    name: days(name, default)
    for name, default in {
        "KEEP_LOG_DAYS": 90,
        "KEEP_DISCARDED_DAYS": 30,
        "KEEP_REPLAYED_DAYS": 30,
        "KEEP_REPLAYS_DAYS": 365,
        "KEEP_CHANGES_DAYS": 365,
        "KEEP_REPORTS_DAYS": 365,
    }.items()
}
# Most MB of parked messages, 0 for no limit.
KEEP_PARKED_MB = whole_number("KEEP_PARKED_MB", 0, 0, 10_000_000)
# Headers with the version of what published a message; the first that it has counts.
VERSION_HEADERS = texts(
    "VERSION_HEADERS",
    "version,x-version,app-version,x-app-version,service-version",
    ".+",
    "version",
)

# Fields of NIGHTLY_CRON; CronSim takes a sixth one, for seconds.
CRON_FIELDS = 5


def _cron(name: str, default: str, zone: str) -> str:
    """Raises ImproperlyConfigured with a sentence for what is no cron expression."""
    cron = os.environ.get(name) or default
    try:
        if len(cron.split()) != CRON_FIELDS:
            raise CronSimError(f"it has not {CRON_FIELDS} fields")
        next(CronSim(cron, datetime.now(ZoneInfo(zone))))
    except (CronSimError, StopIteration) as error:
        raise ImproperlyConfigured(
            f"{name} is “{cron[:40]}”, which is no cron expression ({error}). Set minute, "
            "hour, day, month and weekday, such as “10 0 * * *”."
        ) from error
    return cron


NIGHTLY_TIME_ZONE = time_zone("NIGHTLY_TIME_ZONE", TIME_ZONE)
NIGHTLY_CRON = _cron("NIGHTLY_CRON", "10 0 * * *", NIGHTLY_TIME_ZONE)

# Nightly reports and alerts by mail. Without EMAIL_HOST none is sent, and Delayboard shows this.
EMAIL_HOST = os.environ.get("EMAIL_HOST", "")
EMAIL_HOST_USER = os.environ.get("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS, EMAIL_USE_SSL = is_enabled("EMAIL_USE_TLS"), is_enabled("EMAIL_USE_SSL")
if EMAIL_USE_TLS and EMAIL_USE_SSL:
    raise ImproperlyConfigured(
        "EMAIL_USE_TLS and EMAIL_USE_SSL are both 1. Set one of them, as your mail server needs."
    )
EMAIL_PORT = whole_number("EMAIL_PORT", 465 if EMAIL_USE_SSL else 25, 1, 65_535)
EMAIL_TIMEOUT = 8
DEFAULT_FROM_EMAIL = os.environ.get("DEFAULT_FROM_EMAIL", "delayboard@localhost")

# Address where traces of messages are shown, with {trace_id} in the place of the id.
TRACE_URL = os.environ.get("TRACE_URL", "").strip()
if TRACE_URL and not re.fullmatch(r"https?://\S*\{trace_id\}\S*", TRACE_URL):
    raise refuse("TRACE_URL", "Set an address such as https://traces.example.com/{trace_id}.")

# Text for a terminal, or JSON for a collector of logs.
LOG_FORMAT = choice("LOG_FORMAT", "text", "json")
LOG_LEVEL = choice("LOG_LEVEL", "INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL")
# Level of libraries: at DEBUG some log headers with their cookies.
LIBRARIES_LEVEL = "INFO" if LOG_LEVEL == "DEBUG" else LOG_LEVEL

SERVE_PORT = whole_number("PORT", 8000, 1, 65_535)
POLL_SECONDS = 2.0

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {"()": "delayboard.log_format.make_json_formatter"},
        "text": {
            "()": "delayboard.log_format.LineFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        },
    },
    "filters": {"repeats": {"()": "delayboard.log_format.RepeatFilter"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": LOG_FORMAT,
            "filters": ["repeats"],
        },
        "null": {"class": "logging.NullHandler"},
    },
    "root": {"handlers": ["console"], "level": LIBRARIES_LEVEL},
    # pika logs every lost connection with a stack trace; our messages are one sentence. What
    # django-axes counts is in the audit log.
    "loggers": {
        "pika": {"level": "CRITICAL"},
        "axes": {"level": "ERROR"},
        # Its lines may have parts of an address; what failed is in the row of the alert.
        "apprise": {"level": "WARNING", "propagate": False, "handlers": ["null"]},
        # Several lines for each message of an agent.
        "mcp": {"level": "WARNING"},
        # A line for each start, stop and socket; of requests one where a program reads the log.
        "uvicorn": {"level": "WARNING"},
        "uvicorn.access": {"level": "INFO" if LOG_FORMAT == "json" else "WARNING"},
        "topology": {"level": LOG_LEVEL},
        "analytics": {"level": LOG_LEVEL},
        "delayboard": {"level": LOG_LEVEL},
    },
}
