"""The exit codes of commands, and the error of wrong input: to be imported before the models."""

from __future__ import annotations

from enum import IntEnum

from django.core.management.base import CommandError


class ExitCode(IntEnum):
    """docs/guide/reference.md has the table for users."""

    DONE = 0
    # The answer is no, or Delayboard refused the action.
    NO = 1
    # The input is wrong, or there is no answer. argparse has this number too.
    NOT_RUN = 2
    PARTLY = 3
    # No data, or not known whether it is done.
    UNKNOWN = 4
    STOPPED = 130


class BadInput(CommandError):
    """The input is not valid; the message says why in one sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, returncode=ExitCode.NOT_RUN)
