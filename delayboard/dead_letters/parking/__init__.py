"""Parking: from a queue into the journal, committed before it is acknowledged."""
