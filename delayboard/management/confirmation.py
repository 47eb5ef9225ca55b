"""The options by which a command acts: the account, and the name of a production broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser
from structlog.contextvars import bind_contextvars

from topology import access
from topology.management.exit_codes import BadInput
from topology.management.server import Server
from topology.models import Broker, Role


def add_confirmation(parser: CommandParser) -> None:
    """Add `--confirm NAME`, which is repeated where several brokers take part."""
    parser.add_argument(
        "--confirm",
        action="append",
        default=[],
        metavar="NAME",
        help="the broker's name, if it is production",
    )


def unconfirmed(
    broker: Broker, given: Mapping[str, Any], call: str = "", *, is_needed: bool = False
) -> str:
    """Return why the command may not act on this broker; "" when it may.

    `call` is what to call next, the option `--confirm` aside. With `is_needed` any broker's name
    has to be stated.
    """
    step = f"Use {call} --confirm".replace("  ", " ") + f" “{broker.name}”."
    typed = broker.name if broker.name in given["confirm"] else ""
    return access.production_refusal(broker, typed, step, is_needed=is_needed)


def confirm_at(
    server: Server,
    slug: str,
    given: Mapping[str, Any],
    nothing: str,
    more: str = "",
    *,
    call: str = "",
    is_needed: bool = False,
) -> str:
    """The name that the API gets as `confirm`, "" where none was stated.

    Raises CommandError with the sentence of `unconfirmed` between `nothing` and `more`.
    """
    found = server.get(f"brokers/{quote(slug, safe='')}")
    names = ("name", "environment", "is_production")
    broker = Broker(**{name: found[name] for name in names})
    if refusal := unconfirmed(broker, given, call, is_needed=is_needed):
        raise CommandError(f"{nothing}{refusal}{more}")
    return broker.name if broker.name in given["confirm"] else ""


def find_user(name: str | None, broker: Broker) -> Any:
    """None is Delayboard itself, as for whoever has a shell here; else somebody who may."""
    bind_contextvars(broker_id=broker.pk)
    if name is None:
        return None
    user = get_user_model().objects.filter(username=name).first()
    if user is None:
        raise BadInput(f"There is no account “{name}”.")
    if not access.may(user, broker, Role.OPERATOR):
        raise CommandError(f"“{name}” does not have the role operator on {broker.name}.")
    bind_contextvars(actor_id=user.pk)
    return user
