"""Delay levels as a diagram: a row for each level."""
