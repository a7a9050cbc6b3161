"""How a call is asked to end: one token, for those who ask and for the code that runs."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Cancellation"]


class Cancellation:
    """Whether a call is to end, and when it will be ended; any thread may use it.

    `cancelled`: its end was asked for.  `deadline`: when its hard limit ends it, in unix seconds;
    None while it does not run, or has no such limit.  `left`: the run that the call belongs to was
    interrupted, and a later one goes on with what the call began outside of this process.
    """

    # No constructor: each call has a token, and few are ever cancelled.
    cancelled: bool = False
    deadline: float | None = None
    left: bool = False
    _callbacks: tuple[Callable[[], object], ...] = ()

    def cancel(self) -> None:
        """Ask for the end of the call: callbacks are called here, in order.  Idempotent."""
        self.cancelled = True
        self._call_back()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when the call is cancelled; now, if it was already.

        It is called at least once then.  Only the thread that has the call in hand may ask.
        """
        # In this order, so that no lock is needed: `cancel` sets the flag first and looks then.
        self._callbacks += (callback,)
        if self.cancelled:
            self._call_back()

    def close(self) -> None:
        """The call is over: callbacks are not called any more, nor kept alive."""
        self._callbacks = ()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
