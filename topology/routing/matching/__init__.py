"""Which queues an exchange routes a message to."""
