"""Retry loop: rejected messages wait in a dead queue and return through a fanout exchange."""
