"""A flow that takes a census of the Python standard library (`tools/quickstart` runs it).

One task for each group of files *measures*, one for each module *adds up*, another one adds up
everything, and the last one writes the report. After a failure or Ctrl-C the flow reverts all its
output.

    options    the command line
    sources    the files of each module, and their groups
    measuring  the counts of one file, and the addition of counts
    tasks      the tasks (all that a worker needs to import) and their flow
    page       census.html
"""
