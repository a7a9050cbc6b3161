"""Run programs and write their output and exit codes into a folder.

    python -m tests.interop.examples FOLDER PROGRAM...

Each program runs in a child of this process, which has already imported the library, because the
import takes most of the time.  With `redirected/` on the path they use wbengine, else TaskFlow.
"""

from __future__ import annotations

import builtins
import importlib
import os
import random
import runpy
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

#: Maximum number of programs at a time; most of them sleep.
AT_A_TIME = 8

MODULES = (
    *("engines", "exceptions", "formatters", "retry", "task", "conductors.backends"),
    *("engines.worker_based.engine", "engines.worker_based.worker", "jobs.backends"),
    *("listeners.logging", "listeners.printing", "listeners.timing", "patterns.graph_flow"),
    *("patterns.linear_flow", "patterns.unordered_flow", "persistence.backends.impl_sqlalchemy"),
)

_print = builtins.print


def print_whole_lines(*values: object, sep: str = " ", end: str = "\n", **more: Any) -> None:
    """Print each text with its line end in one write, because other threads print, too."""
    _print(sep.join(map(str, values)) + end, end="", **more)


def run(program: Path, output: Path) -> None:
    """Run a program with its output in a file, whose last line is the exit code."""
    code: object = 0
    with (
        output.open("w") as out,
        output.with_suffix(".err").open("w") as err,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.chdir(folder)
        builtins.print = print_whole_lines
        sys.argv = [str(program)]
        random.seed(1)
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as error:
            code = error.code
        except BaseException:
            traceback.print_exc()
            code = 1
        print(f"exit code {code or 0}", flush=True)


def main(folder: Path, programs: list[Path]) -> None:
    warnings.simplefilter("ignore")  # TaskFlow imports deprecated modules
    for name in MODULES:
        importlib.import_module(f"taskflow.{name}")
    running = 0
    for program in programs:
        if running == AT_A_TIME:
            os.wait()
        else:
            running += 1
        if not os.fork():
            try:
                run(program, folder / f"{program.stem}.out")
            finally:
                os._exit(0)
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
