"""What the management API's refusals mean, as sentences: pure."""

from __future__ import annotations

from topology.broker.address import Address
from topology.broker.errors import (
    BrokerError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
    refuse_unsupported,
)


def explain_answer(status: int, reason: str, address: Address) -> BrokerError:
    """The error for an answer from 300 on, by its status and the reason that it gives."""
    if known := refuse_unsupported(reason):
        return known
    match status:
        case 401 | 403:
            return _explain_refusal(reason, address)
        case 404 if reason == "vhost_not_found":
            return no_vhost(address)
        case 404:
            return NotFound(f"The management API found no such object ({reason}).")
        case 400 | 405 | 409:
            return Conflict(f"RabbitMQ reported: {reason}")
    if 300 <= status < 400:
        return Unreachable(
            f"The management API answered {status}, a redirect to another address. Enter that "
            "address, because Delayboard does not send the password elsewhere."
        )
    return Unreachable(f"The management API answered {status}: {reason}")


def no_vhost(address: Address) -> Refused:
    return Refused(
        f"The virtual host “{address.vhost}” does not exist at {address.management_url}, or the "
        f"user “{address.username}” has no access. Check the name and the user's permissions."
    )


def no_api(address: Address) -> Unreachable:
    """For a 404 where the management API has none: it always has /api/overview, and answers with
    JSON (3.10.8 to 4.3.6)."""
    return Unreachable(
        f"The server at {address.management_url} has no management API. Check the address, and run "
        "`rabbitmq-plugins enable rabbitmq_management`."
    )


def _explain_refusal(reason: str, address: Address) -> Refused:
    """Classify a 401 by RabbitMQ's words, which are the same from 3.10 to 4.3."""
    name, vhost = address.username, address.vhost
    for words, tag, what in (
        ("Not management user", "management", "use the management API"),
        ("Not administrator user", "administrator", "do that"),
    ):
        if words in reason:
            return Refused(
                f"The user “{name}” may not {what}. Add the tag “{tag}” (rabbitmqctl set_user_tags "
                f"{name} {tag})."
            )
    if "access virtual host" in reason:
        what = f"has no permissions on the virtual host “{vhost}”"
        return Refused(f"The user “{name}” {what}. Grant permissions to the user.")
    refused = f"The management API refused the user “{name}”"
    if reason in ("Login failed", "Not_Authorized"):
        return Refused(f"{refused}. Check the user name and the password.")
    return Refused(
        f"{refused} ({reason}). Check the password, the tag (management) and the permissions on "
        f"“{vhost}”."
    )
