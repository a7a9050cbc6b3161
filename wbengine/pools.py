"""Pools of threads and processes that run functions, one call in each slot at a time.

All pools implement this contract:

- `submit(fn, args, done, on_event, limit)` runs `fn(*args, emit)` in a free slot, in the order of
  submission. `emit(event_type, details)` reports events while the call runs.
- `done(value)` is called exactly once for each call that `withdraw` did not return, with the result
  of `fn` or a `Failure`, in the thread of the slot (for a call cancelled before its start: in the
  cancelling thread).
- `on_event(event_type, details)` is called before `done`, in the order of emission: for processes
  in the thread of `done`, for threads in the emitting thread.
- Both should return quickly, because the slot waits for them. Their exceptions are logged.
- `limit` counts from the start of the call. After the soft limit, `SoftTimeLimitExceeded` is raised
  in the call. After the hard limit, the call fails with `TimeLimitExceeded`, and its slot takes the
  next call. A limit is never raised in another call or outside of calls.
- `PoolCall.cancel(grace)` cancels a call. A running call can read `emit.cancellation.cancelled`.
- Slots start when they are needed, or all of them with `start()`.
- `stop()`, or the end of the `with` block, stops a pool. At the exit of the interpreter, remaining
  pools are killed.
"""

from wbengine.concurrency.process_pool import ProcessPool
from wbengine.concurrency.thread_pools import ExternalPool, Pool, PoolCall, SoloPool, ThreadPool

__all__ = ["ExternalPool", "Pool", "PoolCall", "ProcessPool", "SoloPool", "ThreadPool"]
