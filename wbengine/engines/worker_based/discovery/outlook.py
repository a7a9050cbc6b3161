"""What a finder knows of the workers, for whoever asks now and then."""

from __future__ import annotations

import threading
from typing import Any

from wbengine.engines.worker_based.discovery import hearing
from wbengine.engines.worker_based.discovery.roster import Roster, TopicWorker, task_name

__all__ = ["Outlook"]


def check_wait(workers: Any, timeout: Any) -> None:
    """See that somebody can wait for so many workers, for so long."""
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise TypeError(f"workers must be a whole number, not {workers!r:.80}")
    if workers <= 0:
        raise ValueError(f"can only wait for one worker or more, not {workers}")
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, not {timeout!r:.80}")


class Outlook:
    """Workers as they last described themselves.  Thread-safe."""

    #: Seconds between two beats that this engine asks its workers for.
    period: float

    def __init__(self) -> None:
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._roster = Roster()
        self._hearing = hearing.Hearing()
        self._messages_processed = 0
        # How many wait for workers.
        self._waiters = 0

    @property
    def _patience(self) -> float:
        """Seconds after which an echo, or a turn of the loop, is late."""
        return 2 * self.period

    @property
    def total_workers(self) -> int:
        """Number of worker processes (not topics) known to be alive."""
        return len(self._roster.identities)

    @property
    def messages_processed(self) -> int:
        return self._messages_processed

    def workers(self) -> list[TopicWorker]:
        with self._lock:
            return list(self._roster)

    def topics(self) -> list[str]:
        """Topics on which somebody is known to work, sorted."""
        with self._lock:
            return sorted({worker.topic for worker in self._roster})

    def tasks(self) -> list[str]:
        """Names of all task classes that somebody offers, sorted."""
        with self._lock:
            return sorted(self._roster.tasks)

    def rounds(self, queue: str, since: float) -> int:
        """How often every live worker of `queue` that was there then has spoken since, at most
        twice.
        """
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.rounds(since) if found is not None else 0

    def idle_rounds(self, queue: str, since: float) -> int:
        """How often every live worker of `queue` reported a free slot since then, at most twice;
        whoever reported none after that begins anew.
        """
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.idle_rounds(since) if found is not None else 0

    def missed(self, since: float, now: float) -> float:
        """Seconds of that time in which this engine did not hear itself, or slept."""
        with self._lock:
            return self._hearing.missed(since, now, self._patience)

    def get_worker_for_task(self, task: Any) -> TopicWorker | None:
        """A live worker that performs `task`, the least busy of them, or None."""
        name = task_name(task)
        with self._lock:
            able = [
                worker
                for queue in self._roster.tasks.get(name, ())
                for worker in self._roster.queues[queue].members.values()
                if worker.performs(name)
            ]
            return max(able, key=lambda worker: worker.slots - worker.running, default=None)

    def wait_for_workers(self, workers: int = 1, timeout: float | None = None) -> int:
        """Wait until `workers` worker processes are known; return how many are still missing.

        :raises ValueError: fewer than one worker is asked for.
        :raises TypeError: `workers` is no whole number, or `timeout` no number.
        """
        check_wait(workers, timeout)
        with self._lock:
            self._waiters += 1
            try:
                self._changed.wait_for(lambda: len(self._roster.identities) >= workers, timeout)
            finally:
                self._waiters -= 1
            return max(0, workers - len(self._roster.identities))
