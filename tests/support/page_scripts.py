"""The modules of documentation pages, run as programs: `python FILE` in a new folder.

A process that has imported the package forks one child for each program, because starting an
interpreter costs more than most of these programs.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import re
import runpy
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support import fresh, pages

#: Modules that most programs import.
_PRELOADED = ("wbengine.engines", "wbengine.patterns", "wbengine.persistence.backends")
#: Programs for other systems, with the package that they need. They run where it is installed.
_FOREIGN = {"temporal_checkout.py": "temporalio", "dbos_checkout.py": "dbos"}
_MAX_SECONDS = 60


class Script(NamedTuple):
    """A program in a folder. `place` is its position in the documentation."""

    place: str
    folder: str
    file: str


def scripts(page: Path, folder: Path) -> Iterator[Script]:
    """Write each module of a page to a folder of its own, with the modules before it.

    Modules that the page itself runs as programs are omitted: the page shows how they end. Those of
    a Django project are omitted, too: only its `manage.py` is a program.
    """
    modules: dict[str, str] = {}
    blocks = pages.blocks(page)
    console = "".join(block.text for block in blocks if block.language == "console")
    if any(block.caption == "manage.py" for block in blocks):
        return
    for block in blocks:
        if block.language != "python" or not block.caption:
            continue
        modules[block.caption] = block.text
        if re.search(rf"python \S* ?{re.escape(block.caption)}", console):
            continue
        own = folder / f"{page.stem}-{block.line}"
        own.mkdir()
        for name, text in modules.items():
            (own / name).write_text(text, encoding="utf-8")
        yield Script(f"{page.name}:{block.line}", str(own), block.caption)


def failures(programs: list[Script]) -> list[str]:
    """Run programs, and return the position and the output of each that fails."""
    failed: list[str] = fresh.call(__name__, "run", programs, real=False)
    return failed


def run(programs: list[tuple[str, str, str]]) -> list[str]:
    """Run programs in children of this process; see `failures`."""
    for module in _PRELOADED:
        importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    failed = []
    for place, folder, file in programs:
        process = context.Process(target=_execute, args=(folder, file))
        process.start()
        process.join()
        if process.exitcode:
            output = Path(folder, "output").read_text(encoding="utf-8")
            failed.append(f"{place}: {file} ends with {process.exitcode}\n{output}")
    return failed


def _execute(folder: str, file: str) -> None:
    os.chdir(folder)
    for descriptor, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        os.dup2(os.open(name, flags), descriptor)
    signal.alarm(_MAX_SECONDS)
    for kind in ("RUNTIME", "CONFIG", "STATE", "DATA"):
        variable = f"XDG_{kind}_{'DIR' if kind == 'RUNTIME' else 'HOME'}"
        os.environ[variable] = os.path.join(folder, kind)
        os.mkdir(os.environ[variable], 0o700)
    os.environ["WBENGINE_URL"] = "redis://127.0.0.1:1/0"  # Only Celery applications read it here.
    sys.argv, sys.path[0] = [file], folder
    warnings.simplefilter("error")
    package = _FOREIGN.get(file)
    if package is not None and importlib.util.find_spec(package) is None:
        compile(Path(file).read_text(encoding="utf-8"), file, "exec")
    else:
        runpy.run_path(file, run_name="__main__")
