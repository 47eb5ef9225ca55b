"""What the page Now shows: problems, throughput, background tasks."""
