"""The import of timeouts from a file: lines, their check, their publishing, the counts."""
