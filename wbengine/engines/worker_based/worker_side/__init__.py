"""What a worker consists of: what it takes on, runs and answers, its life, and what it shows."""
