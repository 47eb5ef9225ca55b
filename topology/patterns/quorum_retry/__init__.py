"""Quorum retry: the delayed retries of quorum queues from RabbitMQ 4.3 on."""
