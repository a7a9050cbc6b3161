"""Repeated runs of one flow, each with other faults, and checks of what it did outside."""
