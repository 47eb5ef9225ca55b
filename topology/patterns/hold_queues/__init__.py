"""Hold queues: one temporary queue for each delay and destination."""
