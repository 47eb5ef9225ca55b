"""Retry pair: a work queue and a retry queue, each the dead-letter target of the other."""
