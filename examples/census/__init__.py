"""A census of the Python standard library, taken by a flow (`tools/quickstart` runs it).

A task for each group of files *measures*, one for each module *adds up*, one adds up everything,
and the last one writes the report.  When one fails, or Ctrl-C is pressed, the flow undoes what it
wrote.

    options    the command line
    sources    which files make up which module, and how they are grouped
    measuring  what is counted in one file, and how counts are added
    tasks      the tasks, all that a worker needs to import, and the flow of them
    page       census.html
"""
