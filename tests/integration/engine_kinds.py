"""Options of `engines.load` for each kind of engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.workers import worker_in_thread


@contextlib.contextmanager
def engine_options(
    name: str, folder: Path, *modules: Any, slots: int = 3
) -> Iterator[dict[str, Any]]:
    """Yield options for one kind of engine. A worker of the engine offers tasks of `modules`."""
    if name == "serial":
        yield {}
    elif name in ("threads", "processes"):
        yield {"engine": "parallel", "executor": name, "max_workers": slots}
    else:
        url = f"memory://{folder.name}" if name == "memory" else f"filesystem://{folder / 'broker'}"
        with worker_in_thread(url, *modules, threads_count=slots):
            yield {"engine": "worker-based", "url": url}
