"""The kinds of tasks. Their public names are in `wbengine.task`."""
