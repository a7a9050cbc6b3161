"""What an engine remembers: the records (`models`), where they are kept (`base`, `backends`)."""
