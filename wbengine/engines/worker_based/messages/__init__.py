"""Messages between engines and workers: format, schemas, signatures."""
