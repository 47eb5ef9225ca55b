"""What waits in the delays: a projection of the event log, and the questions it answers."""
