"""CPU time of whole processes for a task, measured by `tools/bench`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.support import python

ROOT: Final = Path(__file__).resolve().parent.parent.parent
#: File in which `tools/bench` writes its figures.
LAST: Final = ROOT / "out" / "bench.json"

#: The case to read; systems in the order of preference, first one with a shared executor.
CASE: Final = "wide"
MEDIUM: Final = "redis"
SYSTEMS: Final = ("wbengine-shared", "wbengine")


class Unpriced(Exception):
    """No figures are available; the text contains the reason."""


@dataclass(frozen=True)
class Prices:
    """CPU microseconds of a task; `source` describes their origin."""

    engine_us: float
    worker_us: float
    broker_us: float
    source: str

    def changed(self, **others: float | None) -> Prices:
        """Return a copy with the given values."""
        given = {name: one for name, one in others.items() if one is not None}
        said = f"{self.source}; given: {', '.join(given)}" if given else self.source
        return replace(self, **given, source=said)


def read(path: Path) -> Prices:
    """Return the figures in a file of `tools/bench`.

    :raises Unpriced: if the file is invalid or does not contain the case
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unpriced(f"{path}: {error}") from None
    cells: dict[str, dict[str, Any]] = {
        cell["system"]: cell
        for cell in data.get("cells", ())
        if (cell["case"], cell["medium"]) == (CASE, MEDIUM) and "caller_us" in cell
    }
    for system in SYSTEMS:
        if system in cells:
            cell = cells[system]
            source = f"{CASE} over {MEDIUM}, {system}, {data['facts']['when']}"
            return Prices(cell["caller_us"], cell["workers_us"], cell["broker_us"], source)
    raise Unpriced(f"{path} has no figures of {CASE} over {MEDIUM}: run tools/bench")


def measured() -> Prices:
    """Run the case, which takes about ten seconds.

    :raises Unpriced: if it cannot run on this machine
    """
    with tempfile.TemporaryDirectory(prefix="wbengine-prices-") as folder:
        path = Path(folder) / "bench.json"
        command = [str(ROOT / "tools" / "bench"), "--cases", CASE,
                   "--systems", SYSTEMS[0], "--brokers", MEDIUM, "--json", str(path),
                   "--html", str(path.with_suffix(".html"))]  # fmt: skip
        python.run(command, real=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return read(path)


def found(path: Path | None) -> Prices:
    """Return the figures of a file, by default those of the last run, or measure them.

    :raises Unpriced: if there are none
    """
    if path is not None:
        return read(path)
    try:
        return read(LAST)
    except Unpriced:
        print("cost of a task: measured now", file=sys.stderr, flush=True)
        return measured()
