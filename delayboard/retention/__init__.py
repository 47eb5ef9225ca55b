"""The one table of what is kept for how long, with the rules for operations on messages."""
