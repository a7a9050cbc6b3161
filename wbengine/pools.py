"""Pools of threads and processes that run functions, one call in each slot at a time.

All pools implement this contract:

- `submit(fn, args, done, on_event, limit)` runs `fn(*args, emit)` in a free slot, in the order of
  submission. `emit(event_type, details)` reports events while the call runs.
- `done(value)` is called once for each call, unless `withdraw` returned the call, with the result
  of `fn` or a `Failure`. The thread of the slot calls it, or the cancelling thread if the call had
  not started.
- `on_event(event_type, details)` is called before `done`, in the order of emission, by the thread
  of `done` (processes) or by the emitting thread (threads).
- Both callbacks must return quickly, because the slot waits for them. Their exceptions are logged.
- `limit` counts from the start of the call. The limits are described in each class. A limit is
  never raised in another call or outside of calls.
- Slots start when they are needed, or all of them with `start()`.
- `stop()`, or the end of the `with` block, stops a pool. At the exit of the interpreter, remaining
  pools are killed.
"""

from wbengine._concurrency.process_pool import ProcessPool
from wbengine._concurrency.thread_pools import ExternalPool, Pool, PoolCall, SoloPool, ThreadPool

__all__ = ["ExternalPool", "Pool", "PoolCall", "ProcessPool", "SoloPool", "ThreadPool"]
