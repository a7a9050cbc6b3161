"""How messages come and go: connections to a broker, what is declared on it, and its queues."""
