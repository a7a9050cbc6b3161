"""Log lines with the current stacks of threads and coroutines."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import traceback
from typing import Final

from wbengine._concurrency import event_loop

__all__ = ["LOG", "log"]

#: Logger of the state of a process. Its lines are warnings, so that --quiet does not hide them.
LOG: Final = logging.getLogger("wbengine.state")


def log() -> None:
    """Log the stack of each other thread of this process, and of each coroutine of a task."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            name, stack = names.get(ident, ident), "".join(traceback.format_stack(frame))
            LOG.warning("thread %s of process %d:\n%s", name, os.getpid(), stack.rstrip())
    for loop in event_loop.live_loops():
        loop.visit(_log_coroutine)


def _log_coroutine(call: event_loop.LoopCall) -> None:
    frames, awaited = [], call.coroutine
    while inspect.iscoroutine(awaited) and awaited.cr_frame is not None:
        frames.append((awaited.cr_frame, awaited.cr_frame.f_lineno))
        awaited = awaited.cr_await
    stack = "".join(traceback.StackSummary.extract(iter(frames)).format())
    LOG.warning("coroutine of %s:\n%s", call, stack.rstrip())
