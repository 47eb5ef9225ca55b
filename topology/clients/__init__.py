"""How client libraries write what failed: one place for each thing that they write."""
