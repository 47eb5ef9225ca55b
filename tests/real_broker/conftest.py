"""Tests against a real broker: fixtures `broker_node` and `vhost` come from tests/conftest.py."""

from __future__ import annotations
