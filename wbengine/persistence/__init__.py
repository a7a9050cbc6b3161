"""Persistence: records (`models`) and stores (`base`, `backends`)."""
