"""The program that runs in the environment of what is measured: `python drive.py SYSTEM`.

Each line that it reads is an order, each line that it writes tells what came of one, as JSON.
What a system does is in `on_SYSTEM.py`, whose `Driver` has a method for each case; the same module
is what the system's workers import.  Standard library only: it knows nothing of who measures.
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


def opened(system: str, place: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A driver whose workers have done something, and what to tell of it."""
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


def measured(driver: Any, case: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Seconds of one run, and of processor time of this process.

    The driver has seen to it that all results are right.
    """
    gc.collect()
    spent, began = time.process_time(), time.perf_counter()
    getattr(driver, case)(**sizes)
    return {"seconds": time.perf_counter() - began, "caller": time.process_time() - spent}


def _versions(packages: list[str]) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _follow(orders: Any, answers: Any, system: str) -> None:
    driver = None
    try:
        for line in orders:
            order = json.loads(line)
            try:
                if order["do"] == "open":
                    driver, told = opened(system, order["place"])
                else:
                    told = measured(driver, order["case"], order["sizes"])
            except Exception as error:
                traceback.print_exc()
                told = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(told) + "\n")
            answers.flush()
    finally:
        if driver is not None:
            driver.close()


if __name__ == "__main__":
    # What libraries print is not to be taken for an answer.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _follow(sys.stdin, own, sys.argv[1])
