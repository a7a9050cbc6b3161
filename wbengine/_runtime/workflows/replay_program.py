"""The call of a plain workflow function in the calling thread, only to replay its steps."""

from __future__ import annotations

import threading
from typing import Any

from wbengine import exceptions
from wbengine._concurrency import contexts
from wbengine._runtime.workflows.thread_program import ThreadProgram

__all__ = ["ReplayProgram"]


class ReplayProgram(ThreadProgram):
    """A call of a plain function that ends when the function waits for a step without a result."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, on_waiting=_do_nothing, **kwargs)

    def advance(self) -> None:
        self._has_begun = True
        self._thread = threading.current_thread()
        contexts.copy().run(self._run)

    def close(self) -> None:
        self._is_closed = True

    def _return_turn(self) -> None:
        pass  # The engine and the function share a thread.

    def _wait_for_turn(self) -> None:
        self._is_closed = True
        raise exceptions.WorkflowInterrupted("The replay ends: the step has no result")


def _do_nothing() -> None:
    pass
