"""Awaiting what blocks: the run of an engine, from inside somebody's event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

LOG = logging.getLogger(__name__)

_T = TypeVar("_T")


class _Ended(NamedTuple):
    value: Any
    error: BaseException | None


async def in_thread(work: Callable[[], _T], give_up: Callable[[], object] | None = None) -> _T:
    """Call `work` in a thread of its own, with this context, and return or raise what it does.

    Whoever is cancelled meanwhile has `give_up` called (once, in a thread too: it may block), goes
    on waiting until `work` has ended, and is cancelled only then.
    """
    working = _start(work)
    threads = [working]
    cancelled: asyncio.CancelledError | None = None
    while pending := [thread for thread in threads if not thread.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            if cancelled is None and give_up is not None and not working.done():
                threads.append(_start(give_up))
            cancelled = error
    for other in threads[1:]:
        if (problem := other.result().error) is not None:
            LOG.error("%s failed", give_up, exc_info=problem)
    ended = working.result()
    try:
        if cancelled is not None:
            raise cancelled from ended.error
        if ended.error is not None:
            raise ended.error
        value: _T = ended.value
        return value
    finally:
        # What is raised has this frame: a circle would keep the variables of all callers.
        del working, threads, ended, cancelled


def _start(function: Callable[[], object]) -> asyncio.Future[_Ended]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Ended] = loop.create_future()

    def main() -> None:
        try:
            ended = _Ended(function(), None)
        except BaseException as error:
            ended = _Ended(None, error)
        try:
            loop.call_soon_threadsafe(future.set_result, ended)
        except RuntimeError:
            LOG.warning("the event loop that awaited %s was closed", function)
        del ended  # the error, if any, has this frame

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(main,), name="wbengine-awaited", daemon=True).start()
    return future
