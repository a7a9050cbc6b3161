"""Program that runs in the environment of a measured system: `python drive.py SYSTEM`.

It reads requests and writes answers, one JSON object per line. The module `on_SYSTEM.py` contains a
`Driver` with a method for each case; the system's workers import the same module. This program uses
only the standard library and is independent of the other modules of the benchmark.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
import traceback
from typing import Any


def open_driver(system: str, place: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a driver whose workers have completed a task, and the answer."""
    os.environ["BENCH_PLACE"] = json.dumps(place)
    module = importlib.import_module(f"on_{system}")
    driver = module.Driver()
    try:
        driver.wide(1)
    except BaseException:
        driver.close()
        raise
    started = importlib.import_module("place").started
    ready = time.perf_counter() - started[0] if started else None
    return driver, {"versions": _versions(module.PACKAGES), "ready": ready}


def measure(driver: Any, case: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Run a case and return its duration and the processor time of this process in seconds.

    The driver checks the results, and returns the delays of the tasks if the case measures them.
    """
    gc.collect()
    spent, began = time.process_time(), time.perf_counter()
    delays = getattr(driver, case)(**sizes)
    seconds, caller = time.perf_counter() - began, time.process_time() - spent
    return {"seconds": seconds, "caller": caller, "delays": delays or []}


def _versions(packages: list[str]) -> dict[str, str]:
    from importlib import metadata

    versions = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _serve(orders: Any, answers: Any, system: str) -> None:
    driver = None
    try:
        for line in orders:
            order = json.loads(line)
            try:
                if order["do"] == "open":
                    driver, answer = open_driver(system, order["place"])
                else:
                    answer = measure(driver, order["case"], order["sizes"])
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        if driver is not None:
            driver.close()


if __name__ == "__main__":
    # The answers use a separate stream, which libraries cannot print to.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(sys.stdin, own, sys.argv[1])
