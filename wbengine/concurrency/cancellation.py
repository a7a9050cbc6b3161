"""Cancellation tokens, shared by the code that cancels a call and the code that runs it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Cancellation"]


class Cancellation:
    """The cancellation state of a call. Thread-safe.

    :ivar cancelled: the call was cancelled.
    :ivar deadline: end of the hard time limit in Unix seconds; None if the call does not run or has
        none.
    :ivar left: the run of the flow was interrupted; a later run continues the work that the call
        began outside of this process.
    """

    # Class attributes instead of a constructor: each call has a token, and few are cancelled.
    cancelled: bool = False
    deadline: float | None = None
    left: bool = False
    _callbacks: tuple[Callable[[], object], ...] = ()

    def cancel(self) -> None:
        """Cancel the call; callbacks are called in this thread, in order. Idempotent."""
        self.cancelled = True
        self._call_back()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when the call is cancelled; immediately if it was already.

        The callback is then called at least once. Only the thread that owns the call may use this.
        """
        # The order makes a lock unnecessary: `cancel` sets the flag before it reads the callbacks.
        self._callbacks += (callback,)
        if self.cancelled:
            self._call_back()

    def close(self) -> None:
        """Release the callbacks after the end of the call."""
        self._callbacks = ()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
