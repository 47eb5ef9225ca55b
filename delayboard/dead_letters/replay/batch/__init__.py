"""A batch as rows: its options, selection, items and routes, its state, claims and lease."""
