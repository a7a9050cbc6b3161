"""The command line of the census.  Imports nothing but the standard library.

`tools/quickstart` reads it before anything is installed, so that a slip is told at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ENGINES = ("serial", "parallel", "worker-based")

#: Exit codes.
OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 69, 130

_MOST_WORKERS = 64


class UsageError(Exception):
    """The command line asks for something that cannot be; the message is one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str], prog: str) -> argparse.Namespace:
    """Read `argv`: `out` and `root` (or None) as absolute paths, `engine`, `workers`, `fail`.

    :raises UsageError: it makes no sense.
    :raises SystemExit: it asked for help, which was shown.
    """
    parser = _Parser(
        prog=prog,
        description="Take a census of the Python standard library with a flow of some 400 tasks\n"
        "that run on worker processes; write census.json and census.html.",
        epilog="exit codes: 0 done, 1 the flow failed (and was reverted), 2 wrong usage,\n"
        "            69 no broker or no workers, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--out", metavar="DIR", default="out", help="the folder for the results (%(default)s)")
    add("--root", metavar="DIR", help="measure this folder, not the standard library")
    add("--engine", choices=ENGINES, default="worker-based", help="(%(default)s)")
    add("--workers", metavar="N", type=int, default=2,
        help="worker processes; for parallel, child processes (%(default)s)")  # fmt: skip
    add("--fail", metavar="MODULE", help="let a task of MODULE fail, to see the flow reverted")
    found = parser.parse_args(argv)
    if not 1 <= found.workers <= _MOST_WORKERS:
        raise UsageError(f"--workers must be 1 to {_MOST_WORKERS}, not {found.workers}")
    if found.root is not None and not os.path.isdir(found.root):
        what = "not a folder" if os.path.exists(found.root) else "no such folder"
        raise UsageError(f"--root {found.root}: {what}")
    if not found.out:
        raise UsageError("--out is empty: name a folder")
    if os.path.exists(found.out) and not os.path.isdir(found.out):
        raise UsageError(f"--out {found.out}: not a folder")
    found.out = Path(os.path.abspath(found.out))
    found.root = None if found.root is None else Path(os.path.abspath(found.root))
    return found
