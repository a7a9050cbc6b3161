"""Pools of threads and of processes that run plain functions, one call per slot at a time.

All pools share one contract:

- `submit(fn, args, done, on_event, limit)` runs `fn(*args, emit)` in a free slot, calls in the
  order submitted.  `emit(event_type, details)` reports events while the call runs.
- `done(value)` is called exactly once for each call that `withdraw` did not hand back, in the
  thread of its slot (of one that was cancelled before it started: in the cancelling thread), with
  what `fn` returned or with the `Failure` that stands for it.
- `on_event(event_type, details)` is called in the same thread (processes) or in the emitting thread
  (threads), in the order emitted, before `done`.
- Both should return quickly: the slot waits for them.  What they raise is logged.
- `limit` counts from the call's start.  When its soft part is over, `SoftTimeLimitExceeded` is
  raised in the call; when its hard part is over, the call fails with `TimeLimitExceeded`, and its
  slot takes the next one.  No limit is raised in another call, or outside of calls.
- `Ticket.cancel(grace)` lets a call come to an end; one that runs can ask `emit.cancelled`.
- Slots start when they are first needed, or all at once by `start()`.
- A pool is stopped by `stop()`, or by leaving its `with` block.  One that is still there when the
  interpreter ends is killed.
"""

from __future__ import annotations

import atexit
from typing import Final

from wbengine._pool_base import LIVE as _LIVE
from wbengine._pool_base import Pool as Pool
from wbengine._pool_base import Ticket as Ticket
from wbengine._pool_children import ProcessPool as ProcessPool
from wbengine._pool_given import GivenPool as GivenPool
from wbengine._pool_threads import SoloPool as SoloPool
from wbengine._pool_threads import ThreadPool as ThreadPool

__all__ = ["GivenPool", "Pool", "ProcessPool", "SoloPool", "ThreadPool", "Ticket"]

#: Seconds that calls which run when the interpreter ends have to finish.
_GRACE: Final = 2.0


def _at_exit() -> None:
    pools = list(_LIVE)
    for pool in pools:
        pool.stop(wait=False, kill=True)
    for pool in pools:
        pool.join(_GRACE)


# Registered after the handler of `multiprocessing`, so it runs before that one, which would wait
# for children that wait for us.
atexit.register(_at_exit)
