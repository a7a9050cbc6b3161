"""The real OpenStack TaskFlow at the other end, in processes of its own."""
