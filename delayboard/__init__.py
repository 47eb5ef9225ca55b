"""The site, and the operator's work on messages."""
