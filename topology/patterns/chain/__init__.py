"""Chains of others, adopted: topologies without a pattern."""
