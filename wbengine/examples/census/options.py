"""The command line of the census.  Imports nothing but the standard library.

`tools/quickstart` reads it before anything is installed, so that a slip is told at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

ENGINES: Final = ("serial", "parallel", "worker-based")

#: Exit codes.
OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 69  # sysexits' EX_UNAVAILABLE
INTERRUPTED: Final = 130

_MOST_WORKERS: Final = 64
_EPILOG: Final = """\
exit codes: 0 done, 1 the flow failed (and was reverted), 2 wrong usage,
            69 no broker or no workers, 130 interrupted
"""


class UsageError(Exception):
    """The command line asks for something that cannot be; the message is one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said; `out` and `root` are absolute."""

    out: Path
    root: Path | None
    engine: str
    workers: int
    fail: str | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str], prog: str) -> Options:
    """Read `argv`.

    :raises UsageError: it makes no sense.
    :raises SystemExit: it asked for help, which was shown.
    """
    said = _parser(prog).parse_args(argv)
    if not 1 <= said.workers <= _MOST_WORKERS:
        raise UsageError(f"--workers must be 1 to {_MOST_WORKERS}, not {said.workers}")
    if said.root is not None and not os.path.isdir(said.root):
        what = "not a folder" if os.path.exists(said.root) else "no such folder"
        raise UsageError(f"--root {said.root}: {what}")
    if os.path.exists(said.out) and not os.path.isdir(said.out):
        raise UsageError(f"--out {said.out}: not a folder")
    return Options(
        out=Path(os.path.abspath(said.out)),
        root=None if said.root is None else Path(os.path.abspath(said.root)),
        engine=said.engine,
        workers=said.workers,
        fail=said.fail,
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description=(
            "Take a census of the Python standard library with a flow of some 400 tasks\n"
            "that run on worker processes; write census.json and census.html."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out", metavar="DIR", default="out", help="the folder for the results (default: out)"
    )
    parser.add_argument(
        "--root", metavar="DIR", help="measure this folder instead of the standard library"
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="worker-based",
        help="which engine runs the flow (default: worker-based)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=int,
        default=2,
        help="worker processes; for parallel, child processes (default: 2)",
    )
    parser.add_argument(
        "--fail", metavar="MODULE", help="let the task that measures MODULE fail, to see the revert"
    )
    return parser
