"""Parked messages as a file: out of one Delayboard, into another (docs/dead-letters.md)."""
