"""Replaying dead letters: judge, freeze, send, tell."""
