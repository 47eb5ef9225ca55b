"""The commands of the installed package: `delayboard help` lists them."""

from __future__ import annotations

import os
import sys

from delayboard.run_command import run_command


def main() -> int:
    """Run the command of the arguments; returns the exit code."""
    # What is written here holds password hashes, sealed credentials and message headers.
    os.umask(0o077)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "delayboard.settings")
    return run_command(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
