"""Messages between engines and workers: headers, signatures, asks and controls."""
