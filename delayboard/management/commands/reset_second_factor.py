"""Deletes the second factors of an account."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from delayboard.sign_in.second_factor import reset
from topology.content.text import count_of
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput


class Command(BoardCommand):
    help = (
        "Delete the authenticator app, passkeys and recovery codes of an account whose owner "
        "lost them. The password alone signs it in until it has a new second factor."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="the name of the account")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["username"]
        user = User.objects.filter(username=name).first()
        if user is None:
            raise BadInput(f"No account is called “{name[:150]}”. Check the name.")
        number = reset(None, user)
        self.stdout.write(f"{count_of(number, 'second factor')} of {name} deleted.")
