"""The command `wbengine`: flows, workers, queues and stores, without writing Python.

`app` is where it begins.  A command is a module of its own, loaded when it is asked for.
"""
