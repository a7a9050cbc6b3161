"""Blocking calls, such as the run of an engine, awaited in an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from wbengine._concurrency import threads

LOG = logging.getLogger(__name__)

_T = TypeVar("_T")


class _Result(NamedTuple):
    value: Any
    error: BaseException | None


async def in_thread(work: Callable[[], _T], on_cancel: Callable[[], object] | None = None) -> _T:
    """Call `work` in a new thread with the current context; return its result or raise its error.

    If the caller is cancelled, `on_cancel` is called once, also in a thread because it
    may block. The cancellation is raised only after `work` ended.
    """
    working = _start(work)
    started = [working]
    cancelled: asyncio.CancelledError | None = None
    while pending := [thread for thread in started if not thread.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            if cancelled is None and on_cancel is not None and not working.done():
                started.append(_start(on_cancel))
            cancelled = error
    for other_thread in started[1:]:
        if (problem := other_thread.result().error) is not None:
            LOG.error("%s failed", on_cancel, exc_info=problem)
    ended = working.result()
    try:
        if cancelled is not None:
            raise cancelled from ended.error
        if ended.error is not None:
            raise ended.error
        value: _T = ended.value
        return value
    finally:
        # The exception refers to this frame: without this, a reference cycle would keep the
        # variables of all callers alive.
        del working, started, ended, cancelled


def _start(function: Callable[[], object]) -> asyncio.Future[_Result]:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # The caller runs in trio or curio, for example.
        raise RuntimeError(
            "This coroutine must be awaited in an asyncio event loop. In other event loops, call"
            " the blocking function in a thread, as in trio.to_thread.run_sync(engine.run)"
        ) from None
    future: asyncio.Future[_Result] = loop.create_future()

    def main() -> None:
        try:
            ended = _Result(function(), None)
        except BaseException as error:
            ended = _Result(None, error)
        try:
            loop.call_soon_threadsafe(future.set_result, ended)
        except RuntimeError:
            LOG.warning(
                "the event loop that awaited %s is closed: its result is discarded", function
            )
        del ended  # an error refers to this frame

    context = contextvars.copy_context()
    threads.Thread(target=context.run, args=(main,), name="wbengine-awaited", daemon=True).start()
    return future
