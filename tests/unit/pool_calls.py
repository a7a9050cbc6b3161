"""What runs in the pools of tests; importing it costs their children next to nothing."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
from typing import Any

from wbengine import exceptions, loops

SOFT = exceptions.SoftTimeLimitExceeded


def quick(emit: Any) -> int:
    return os.getpid()


def spin(emit: Any) -> None:
    emit("begun", {"pid": os.getpid()})
    while True:
        pass


def clean_up(emit: Any) -> str:
    try:
        spin(emit)
    except SOFT:
        emit("cleaning", {})
        return "clean"
    return "never"


def stubborn(emit: Any) -> None:
    """Ends at nobody's wish."""
    emit("begun", {"pid": os.getpid()})
    while True:
        try:
            time.sleep(0.001)
        except SOFT:
            pass


def asleep(emit: Any) -> None:
    emit("begun", {"pid": os.getpid()})
    time.sleep(3600)


def stopped(emit: Any) -> None:
    """None of its threads goes on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def meet(folder: str, emit: Any) -> int:
    """Wait for one in another process."""
    (pathlib.Path(folder) / str(os.getpid())).touch()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.001)
    return os.getpid()


def blocked(door: threading.Lock, emit: Any) -> str:
    """In C, where no exception gets, until somebody lets it go."""
    emit("begun", {"pid": os.getpid()})
    door.acquire()
    return "late"


def obedient(emit: Any) -> str:
    emit("begun", {"pid": os.getpid()})
    while not emit.cancelled:
        time.sleep(0.001)
    return "obeyed"


def deadline(emit: Any) -> float | None:
    found: float | None = emit.deadline
    return found


def is_cancelled(emit: Any) -> bool:
    return bool(emit.cancelled)


def sleeps_in_loop(cleans: bool, emit: Any) -> Any:
    return loops.of_process().run(_sleeps, cleans)


async def _sleeps(cleans: bool) -> str:
    import asyncio

    try:
        await asyncio.sleep(3600)
    except SOFT:
        await asyncio.sleep(0.001)  # the interruption is over
        if cleans:
            return "clean"
        raise
    return "never"


def eat(amount: int, emit: Any) -> str:
    emit("begun", {"pid": os.getpid()})
    food = bytearray(amount)
    time.sleep(3600)
    return str(len(food))


_kept: list[bytearray] = []


def keep(amount: int, emit: Any) -> int:
    _kept.append(bytearray(amount))
    return os.getpid()


def busy(seconds: float, emit: Any) -> str:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return "ended"
