"""Parking, and parked messages: from a queue into the database, states, groups, redaction."""
