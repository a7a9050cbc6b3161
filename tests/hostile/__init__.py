"""Messages that nobody in his right mind sends, and what workers and engines make of them."""
