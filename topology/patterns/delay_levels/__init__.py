"""Delay levels: queues with TTLs of powers of two, as NServiceBus and Celery declare them."""
