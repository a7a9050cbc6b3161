"""Listeners receive the state changes of a run, and log, print, measure or check them."""
