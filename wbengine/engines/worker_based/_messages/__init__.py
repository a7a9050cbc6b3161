"""Messages between engines and workers: headers, signatures, orders to workers."""
