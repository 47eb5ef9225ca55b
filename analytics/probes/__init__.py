"""Probes: small messages of ours that measure the delays which no tap observes."""
