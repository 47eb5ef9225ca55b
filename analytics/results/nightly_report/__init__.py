"""The nightly report as a file: its text and PDF, stored and sent to subscribers."""
