"""Job boards: where flows are posted, and conductors find them."""
