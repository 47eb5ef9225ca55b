"""Pages about findings: the list, one finding, the history."""
