"""The API: one more door over the functions that pages and commands call."""
