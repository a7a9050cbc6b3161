"""What engines and workers say to each other: what a message looks like, and what it means."""
