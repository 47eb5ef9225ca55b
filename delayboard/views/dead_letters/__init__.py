"""Pages about dead letters and parked messages."""
