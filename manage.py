#!/usr/bin/env python
"""Delayboard's commands: `manage.py help` lists them."""

from __future__ import annotations

import sys

from delayboard.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
