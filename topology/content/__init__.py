"""Texts and bodies that others wrote, made readable: JSON, charsets, patterns of texts; pure."""
