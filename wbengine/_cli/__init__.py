"""The `wbengine` command: manage flows, workers, queues and stores without writing Python.

`app` is the entry point. Each command has a module of its own, which is loaded when it is used.
"""
