"""What operators type about messages."""
