"""What an executor consists of: its beginning and end, its engines, and what it shows of itself."""
