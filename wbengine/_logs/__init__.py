"""Log records of the library and of tasks: their fields, format, capture and storage."""
