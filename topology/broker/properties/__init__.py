"""AMQP basic properties: raw bytes, and their values read tolerantly."""
