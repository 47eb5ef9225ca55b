"""Retry ladder: each retry waits longer, and the last failure is parked."""
