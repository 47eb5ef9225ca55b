"""AMQP 0-9-1 by pika: connections, consumers, confirmed publishing."""
