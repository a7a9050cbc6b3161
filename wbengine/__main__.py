"""The `wbengine` command: says what it is and where the doors are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import wbengine

_EPILOG = """\
To run a worker:  python -m wbengine.worker --help
To run a flow:    wbengine.engines.run(flow), from Python
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the version or the help; exit codes: 0, 2 for arguments that mean nothing."""
    parser = argparse.ArgumentParser(
        prog="wbengine",
        description=wbengine.__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"wbengine {wbengine.__version__}")
    parser.parse_args(arguments)
    parser.print_help(sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
