"""Alerts and nightly reports, sent by e-mail and to other services."""
