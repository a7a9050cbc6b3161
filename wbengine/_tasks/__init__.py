"""The kinds of tasks; their public names are in `wbengine.task`."""
