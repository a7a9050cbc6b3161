"""Stores and ledgers that releases wrote, and the program that writes them."""
