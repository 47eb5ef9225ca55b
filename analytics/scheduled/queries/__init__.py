"""Queries over the rows of scheduled messages: filter, search, pages."""
