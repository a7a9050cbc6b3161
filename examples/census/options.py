"""The command line of the census. It imports only the standard library.

`tools/quickstart` parses it before anything is installed, so that errors are reported immediately.
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

_MAX_WORKERS = 64


class UsageError(Exception):
    """Invalid arguments of the command line; the message is one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str], prog: str) -> argparse.Namespace:
    """Parse `argv`: `out` and `root` (or None) as absolute paths, `engine`, `workers`, `fail`.

    :raises UsageError: if an argument is invalid.
    :raises SystemExit: if it contains `--help`, after the help was printed.
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
    add("--fail", metavar="MODULE", help="make a task of MODULE fail, to see the flow reverted")
    args = parser.parse_args(argv)
    if not 1 <= args.workers <= _MAX_WORKERS:
        raise UsageError(f"--workers must be 1 to {_MAX_WORKERS}, not {args.workers}")
    if args.root is not None and not os.path.isdir(args.root):
        problem = "not a folder" if os.path.exists(args.root) else "no such folder"
        raise UsageError(f"--root {args.root}: {problem}")
    if not args.out:
        raise UsageError("--out is empty: name a folder")
    if os.path.exists(args.out) and not os.path.isdir(args.out):
        raise UsageError(f"--out {args.out}: not a folder")
    args.out = Path(os.path.abspath(args.out))
    args.root = None if args.root is None else Path(os.path.abspath(args.root))
    return args
