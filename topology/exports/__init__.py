"""Definitions of a topology for other tools: pure."""
