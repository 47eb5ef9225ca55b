"""Texts and numbers about replays for pages and commands."""
