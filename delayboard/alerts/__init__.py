"""Alerts: the problems of Now, sent by e-mail and to other services."""
