"""Test and delayed messages: predict, send, follow."""
