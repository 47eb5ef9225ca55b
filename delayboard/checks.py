"""Django's system checks: invalid settings, reported before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

from cryptography.fernet import Fernet
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

# Names of settings that no other program has: one that nothing reads is misspelt.
OUR_NAMES = re.compile(r"(?:DELAYBOARD|NIGHTLY|EMAIL|OIDC|REMOTE_USER)_.+|KEEP_.+_(?:DAYS|MB)")
# Forms of settings that Spark understands, which starts only at night.
SPARK_FORMS = {
    "SPARK_MASTER": (r"local(\[.+\])?|spark://.+|yarn|k8s://.+", "spark://host:7077"),
    "SPARK_REMOTE": (r"sc://.+|local(\[.+\])?", "sc://host:15002"),
    "SPARK_MEMORY": (r"[1-9]\d*[kmgt]", "2g"),
}


@register()
def check_names(**options: Any) -> list[CheckMessage]:
    return [
        Error(f"Delayboard has no setting {name}. Correct or unset it.", id="delayboard.E003")
        for name in unknown_names(os.environ)
    ]


def unknown_names(names: Iterable[str]) -> list[str]:
    """The names that look like settings of Delayboard, and that it does not read."""
    read = {
        *("DELAYBOARD_VAR", "DELAYBOARD_CACHE", "NIGHTLY_CRON", "NIGHTLY_TIME_ZONE"),
        *("EMAIL_HOST", "EMAIL_HOST_USER", "EMAIL_HOST_PASSWORD", "EMAIL_PORT"),
        *("EMAIL_USE_TLS", "EMAIL_USE_SSL", "KEEP_PARKED_MB"),
        *("OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET", "OIDC_NAME", "OIDC_SCOPES"),
        *("OIDC_GROUPS_CLAIM", "REMOTE_USER_PROXIES", "REMOTE_USER_HEADER"),
        *("REMOTE_USER_GROUPS_HEADER", "REMOTE_USER_SIGN_OUT_URL"),
        *settings.KEEP_DAYS,
    }
    return sorted(name for name in names if OUR_NAMES.fullmatch(name) and name not in read)


@register()
def check_forms(**options: Any) -> list[CheckMessage]:
    """What other programs read later, and would take for something else."""
    errors: list[CheckMessage] = []
    for name, (form, example) in SPARK_FORMS.items():
        text = os.environ.get(name, "")
        if text and not re.fullmatch(form, text, re.IGNORECASE):
            sentence = f"{name} is “{text[:40]}”. Set for example {example}, or unset it."
            errors.append(Error(sentence, id="delayboard.E004"))
    text = os.environ.get("FORWARDED_ALLOW_IPS", "")
    if not all(_is_network(part.strip()) for part in text.split(",") if text not in ("", "*")):
        sentence = f"FORWARDED_ALLOW_IPS is “{text[:40]}”. Set addresses such as 10.0.0.5 or "
        errors.append(Error(f"{sentence}10.0.0.0/8, with commas.", id="delayboard.E004"))
    try:
        [Fernet(key) for key in settings.CREDENTIAL_KEYS]
    except ValueError:
        sentence = "CREDENTIAL_KEYS has a key that is not 32 bytes in URL-safe base64. Correct it."
        errors.append(Error(sentence, id="delayboard.E004"))
    return errors


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
