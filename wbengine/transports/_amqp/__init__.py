"""RabbitMQ as a broker, through AMQP 0-9-1."""
