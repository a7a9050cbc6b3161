"""Listeners: told of what happens to a flow and its atoms, they log, print, measure or check it."""
