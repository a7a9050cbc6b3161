"""`python -m wbengine.examples.census`."""

from __future__ import annotations

import sys

from wbengine.examples.census.cli import main

if __name__ == "__main__":
    sys.exit(main())
