"""`python -m wbengine`: the command `wbengine`."""

from __future__ import annotations

import sys

from wbengine.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
