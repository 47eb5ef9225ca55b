"""Imports: events recorded elsewhere become lines of the event log, for the reports."""
