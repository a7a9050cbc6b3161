"""Job boards: lists of flows from which conductors take their work."""
