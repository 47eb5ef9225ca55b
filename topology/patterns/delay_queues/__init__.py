"""Delay queues: one queue for each delay beside a work queue."""
