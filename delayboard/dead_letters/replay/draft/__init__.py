"""A draft: created from a selection, frozen and checked, changed, edited."""
