"""Parking: from a queue into the database, committed before the ack."""
