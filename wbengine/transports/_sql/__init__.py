"""PostgreSQL and MySQL as brokers, and ledgers in databases."""
