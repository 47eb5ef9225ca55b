"""Replaying dead letters: draft, check, send, follow; each folder is a layer of pyproject.toml."""
