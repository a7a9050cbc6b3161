"""Cancellation tokens, shared by the canceller and the code that runs the call."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Cancellation"]


class Cancellation:
    """The cancellation state of a call. Thread-safe.

    :ivar cancelled: whether the call was cancelled.
    :ivar deadline: end of the hard time limit in Unix seconds; None if the call does not run or has
        no limit.
    :ivar left: whether the run of the flow was interrupted. A later run continues the work that the
        call started outside of this process.
    """

    # Class attributes, because each call has a token and few calls are cancelled.
    cancelled: bool = False
    deadline: float | None = None
    left: bool = False
    _callbacks: tuple[Callable[[], object], ...] = ()

    def cancel(self) -> None:
        """Cancel the call. This thread runs the callbacks in order. Idempotent."""
        self.cancelled = True
        self._call_back()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Run `callback()` when the call is cancelled, or now if it is already cancelled.

        In rare cases it runs twice. Only the thread that owns the call may use this.
        """
        # No lock is needed: `cancel` sets the flag before it reads the callbacks.
        self._callbacks += (callback,)
        if self.cancelled:
            self._call_back()

    def close(self) -> None:
        self._callbacks = ()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
