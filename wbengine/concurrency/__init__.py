"""Where and for how long calls run: pools, child processes, an event loop, limits, cancellation.

Nothing here knows of tasks or flows: a call is a function, its arguments, and a receiver of its
value.
"""
