"""Flows that are killed: what they do, who runs and kills them, and how what they left is judged.

Nothing here runs threads in the process that forks: engines and workers live in children.
"""
