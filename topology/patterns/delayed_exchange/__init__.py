"""Delayed exchange: the exchange type of the archived delayed-message plugin."""
