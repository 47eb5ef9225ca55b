"""Sending a started batch from the parked messages, or from its queue."""
