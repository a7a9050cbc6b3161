"""A script that exits when it is imported as a module of tasks."""

import sys

sys.exit(5)
