#!/usr/bin/env python
"""Delayboard's commands: `manage.py help` lists them."""

from __future__ import annotations

import os
import sys

from delayboard.run_command import run_command

if __name__ == "__main__":
    # What is written here holds password hashes, sealed credentials and message headers.
    os.umask(0o077)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "delayboard.settings")
    sys.exit(run_command(sys.argv))
