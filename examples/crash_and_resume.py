"""The engine is killed while a worker runs a task; the next engine uses the worker's result.

Two stars are photographed on a worker, one after the other. The engine's process receives a `kill
-9` in the middle of the first exposure. The worker finishes the exposure and stores the result in
the ledger that it shares with the engine. The next engine reads the result from the ledger, so no
plate is exposed twice.

Prints::

    exposing Vega
    the engine is killed
    Vega is exposed
    a new engine
    exposing Deneb
    Deneb is exposed
    in the archive: plate of Deneb, plate of Vega
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from examples import kinds, remote_tasks
from wbengine import engines
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models


def night(stars: list[str], dome: str) -> linear_flow.Flow:
    """Create the flow. Each call must create the same flow with the same names."""
    return linear_flow.Flow("night").add(
        *(remote_tasks.Expose(star, inject={"star": star, "dome": dome}) for star in stars)
    )


def first_engine(records: str, url: str, dome: str) -> None:
    with backends.backend("dir", path=records) as backend:
        engines.load_from_factory(
            "examples.crash_and_resume.night", [["Vega", "Deneb"], dome],
            book=models.LogBook("plates"), backend=backend, engine="worker-based", url=url,
        ).run()  # fmt: skip


def second_engine(records: str, url: str) -> None:
    with backends.backend("dir", path=records) as backend:
        (unfinished,) = base.unfinished_flows(backend)
        engine = engines.load_from_detail(
            unfinished, backend=backend, engine="worker-based", url=url
        )
        engine.run()
        plates = [engine.storage.get(star) for star in ("Vega", "Deneb")]
        print("in the archive:", ", ".join(sorted(plates)))


def until_seen(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with (
        tempfile.TemporaryDirectory() as folder,
        kinds.worker_processes(remote_tasks.__name__, url := f"filesystem://{folder}/broker"),
    ):
        dome = Path(folder, "dome")
        dome.mkdir()
        child = multiprocessing.get_context("spawn").Process(
            target=first_engine, args=(f"{folder}/records", url, str(dome))
        )
        child.start()
        until_seen(dome / "Vega begun")
        child.kill()
        child.join()
        print("the engine is killed")
        (dome / "clouds are gone").touch()
        until_seen(dome / "Vega ended")
        print("a new engine")
        second_engine(f"{folder}/records", url)


if __name__ == "__main__":
    main()
