"""The management API by requests: calls within limits, answers checked, snapshots."""
