"""The option that confirms an action on a production broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from topology import access
from topology.models import Broker


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
