"""The one door to RabbitMQ: AMQP 0-9-1 by pika, the management API by requests."""
