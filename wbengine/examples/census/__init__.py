"""A census of the Python standard library, taken by a flow.

Run it with `tools/quickstart` or `python -m wbengine.examples.census`.  The flow is a map and a
reduce: a task per group of files *measures*, a task per module *adds up*, one adds up everything,
and the last one writes the report.  When any of them fails, the flow undoes what it wrote.

    options    the command line
    sources    which files make up which module, and how they are grouped
    measuring  what is counted in one file, and how counts are added
    tasks      the tasks: all that a worker needs to import
    flow       the flow made of them
    fleet      worker processes for one run
    progress   what the terminal shows meanwhile
    running    one run from start to end
    page       census.html; graph and timeline draw its pictures
"""
