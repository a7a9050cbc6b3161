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
- `PoolCall.cancel(grace)` lets a call come to an end; one that runs can ask
  `emit.cancellation.cancelled`.
- Slots start when they are first needed, or all at once by `start()`.
- A pool is stopped by `stop()`, or by leaving its `with` block.  One that is still there when the
  interpreter ends is killed.
"""

from wbengine.concurrency.pools import ExternalPool, Pool, PoolCall, SoloPool, ThreadPool
from wbengine.concurrency.process_pool import ProcessPool

__all__ = ["ExternalPool", "Pool", "PoolCall", "ProcessPool", "SoloPool", "ThreadPool"]
