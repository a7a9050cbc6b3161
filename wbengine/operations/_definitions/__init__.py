"""One module for each operation of the table."""
