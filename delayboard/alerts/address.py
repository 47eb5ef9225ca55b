"""From what an administrator types to an address of Apprise, and a name without secrets."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

import apprise
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from delayboard.models.alert import AlertChannel

EXAMPLES = {
    AlertChannel.EMAIL: "ops@example.org",
    AlertChannel.WEBHOOK: "https://example.org/hook",
    AlertChannel.SLACK: "https://hooks.slack.com/services/…",
    AlertChannel.TEAMS: "the HTTP address of a Teams workflow",
    AlertChannel.PAGERDUTY: "pagerduty://INTEGRATION_KEY@API_KEY",
}
# Which services of Apprise a channel may lead to: others reach the machine itself.
SERVICES = {
    AlertChannel.WEBHOOK: {"json"},
    AlertChannel.SLACK: {"slack"},
    AlertChannel.TEAMS: {"workflow", "workflows", "msteams"},
    AlertChannel.PAGERDUTY: {"pagerduty"},
}
# Shorter parts of an address are words, not secrets.
SECRET_LENGTH = 6
ASSET = apprise.AppriseAsset(
    app_id="Delayboard",
    app_desc="Delayboard",
    app_url="",
    image_url_mask="",
    image_url_logo="",
    async_mode=False,
    http_redirects=False,
    secure_logging=True,
    storage_mode="memory",
)


class AddressRefused(Exception):
    """Not an address of this channel; the message is a sentence."""


def check_address(channel: str, text: str) -> tuple[AlertChannel, str, str]:
    """The channel, the address and the name to show. Raises AddressRefused."""
    if channel not in AlertChannel.values:
        raise AddressRefused("Select a channel.")
    kind, address = AlertChannel(channel), text.strip()
    refusal = AddressRefused(
        f"The address is not valid for {kind.label}. Enter an address such as {EXAMPLES[kind]}."
    )
    if kind == AlertChannel.EMAIL:
        try:
            validate_email(address)
        except ValidationError as error:
            raise refusal from error
        return kind, address, address
    parts = _split(address)
    if parts is None:
        raise refusal
    scheme, host = parts
    is_webhook = kind == AlertChannel.WEBHOOK
    if is_webhook and scheme not in ("http", "https"):
        raise refusal
    url = _webhook_url(address) if is_webhook else address
    service = apprise.Apprise.instantiate(url, asset=ASSET, suppress_exceptions=True)
    # Its names before "://"; Apprise has one or several for each of plain and TLS.
    names: list[str] = []
    for some in (service.protocol, service.secure_protocol) if service else ():
        names += [some] if isinstance(some, str) else some or ()
    if service is None or not SERVICES[kind] & set(names):
        raise refusal
    # Apprise would read a file of this machine, or another address.
    if getattr(service, "template", None):
        raise AddressRefused("Enter the address without the parameter “template”.")
    return kind, address, host if is_webhook else kind.label


def make_url(channel: str, address: str, incident: str) -> str:
    """The address as Apprise takes it.

    PagerDuty has one incident for each name of an incident, until an all-clear resolves it.
    """
    if channel == AlertChannel.WEBHOOK:
        return _webhook_url(address)
    if channel == AlertChannel.PAGERDUTY:
        # The last value of a name counts.
        values = {"action": "map", "dedup": incident, "overflow": "truncate"}
        return f"{address}{'&' if '?' in address else '?'}{urlencode(values)}"
    return address


def read_host(channel: str, address: str) -> str:
    """The host that gets the alerts; "" where the address has keys in place of a host."""
    if channel == AlertChannel.EMAIL:
        return address.rpartition("@")[2]
    scheme, host = _split(address) or ("", "")
    return host if scheme in ("http", "https") else ""


def hide_address(text: str, channel: str, address: str) -> str:
    """The text without the parts of an address that may be secret."""
    parts = _split(address)
    host = parts[1] if parts and channel == AlertChannel.WEBHOOK else ""
    words = re.split(r"[^A-Za-z0-9_.\-]+", address)
    secrets = {word for word in words if len(word) >= SECRET_LENGTH and word != host}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _split(address: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return None
    return (parts.scheme.lower(), host) if host else None


def _webhook_url(address: str) -> str:
    """Of Apprise's own parameters none can be set: each of the address is sent with it."""
    parts = urlsplit(address)
    scheme = "jsons" if parts.scheme.lower() == "https" else "json"
    sent = urlencode([(f"-{name}", value) for name, value in parse_qsl(parts.query, True)])
    # Apprise refuses a URL that ends in "?".
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{sent}" if sent else "")
