"""What runs without anybody looking: recorders, replays, the nightly schedule."""
