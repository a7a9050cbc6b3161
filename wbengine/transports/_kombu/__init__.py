"""Transports of kombu other than RabbitMQ."""
