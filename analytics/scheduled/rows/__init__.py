"""Rows of scheduled messages: written from events, due times, sums."""
