"""Prints a link that signs a local account in once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser
from django.urls import reverse

from delayboard.sign_in.link import VALID_MINUTES, make_link_token
from topology import audit
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput


class Command(BoardCommand):
    help = (
        "Print a link that signs this account in once, within ten minutes, also while passwords "
        "are hidden or the provider does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="the name of the account")
        parser.add_argument(
            "--site", default="http://127.0.0.1:8000", help="the address of the site"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_account(options["username"])
        # In the query, since logs have paths.
        address = f"{reverse('sign_in_link')}?token={make_link_token(user)}"
        audit.record(None, "sign-in link made", what=user.get_username())
        self.stdout.write(f"{options['site'].rstrip('/')}{address}")
        self.stderr.write(f"The link is valid once, for {VALID_MINUTES} minutes.")


def find_account(name: str) -> User:
    """Raises BadInput for an account that does not exist or is deactivated."""
    user = User.objects.filter(username=name, is_active=True).first()
    if user is None:
        raise BadInput(f"No active account is called “{name[:150]}”. Check the name.")
    return user
