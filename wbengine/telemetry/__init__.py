"""What others hear of flows, tasks and workers: metrics, traces, probes.

Nothing here is loaded, and nothing is counted, unless somebody asks for it.
"""
