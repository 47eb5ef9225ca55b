"""More events than a client library could send, at an even pace, and what a worker makes of it."""
