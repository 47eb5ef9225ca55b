"""What all commands of Delayboard share."""

from __future__ import annotations

import logging
from typing import Any, Literal

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from topology.broker.errors import BrokerError
from topology.management.exit_codes import BadInput, ExitCode
from topology.operations.ownership import Refusal
from topology.patterns.pattern import ParamsError

logger = logging.getLogger(__name__)


def command_error(error: Exception, prefix: str = "") -> CommandError:
    """What a command ends with after an error of the domain; `prefix` says what was not done."""
    if isinstance(error, ParamsError):
        named = (f"{name}: {text}" if name else text for name, text in error.problems.items())
        return BadInput(f"{prefix}{' '.join(named)}")
    is_unanswered = isinstance(error, BrokerError)
    code = ExitCode.NOT_RUN if is_unanswered else ExitCode.NO
    return CommandError(f"{prefix}{error}", returncode=code)


class BoardCommand(BaseCommand):
    """A command whose errors `delayboard.run_command` prints and turns into exit codes.

    System checks concern the site: they load every page. Commands that run until they are stopped
    make them.
    """

    requires_system_checks: list[str] | tuple[str, ...] | Literal["__all__"] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command as Django does, without printing errors. Raises CommandError."""
        parser = self.create_parser(argv[0], argv[1])
        try:
            options = vars(parser.parse_args(argv[2:]))
        except CommandError as error:
            problem = str(error).removeprefix("Error: ").rstrip(".")
            raise BadInput(
                f"{problem[:1].upper()}{problem[1:]}. See manage.py {argv[1]} --help."
            ) from error
        self.execute(*options.pop("args", ()), **options)

    def report(self, sentence: str) -> None:
        """Print what a command that runs until it is stopped does; in JSON where logs are."""
        if settings.LOG_FORMAT == "json":
            logger.info(sentence)
        else:
            self.stdout.write(sentence)
            self.stdout.flush()

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Raises CommandError for errors of the domain too."""
        try:
            return super().execute(*args, **options)
        except (Refusal, BrokerError, ParamsError) as error:
            raise command_error(error) from error
