"""A script that somebody takes for a module of tasks."""

import sys

sys.exit(5)
