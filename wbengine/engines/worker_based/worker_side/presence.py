"""What a worker tells of itself: who it is, what it offers, how busy it is, and how it lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wbengine import __version__
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life as lives
from wbengine.engines.worker_based.worker_side.jobs import Job

__all__ = ["Presence"]


class Presence:
    """One worker process, on the topics that it serves, which `queues` maps to their queues.

    `plain`: it tells of its topic and its tasks, as TaskFlow's do, and of nothing else.  (The next
    question may reach another worker of that topic: nobody could count on beats.)
    """

    def __init__(
        self,
        identity: str,
        queues: Mapping[str, str],
        names: Sequence[str],
        slots: int,
        plain: bool = False,
    ) -> None:
        self._identity = identity
        self._queues = dict(queues)
        self._names = names
        self._slots = slots
        self.plain = plain
        #: Digest of the ledger that it shares with its engines.
        self.ledger: str | None = None

    def notices(
        self,
        listeners: Iterable[str],
        state: str,
        life: lives.Life,
        running: int,
        held: Iterable[Job],
        period: float | None,
    ) -> list[env.Envelope]:
        """A message for each listener and topic.

        `held` are the requests that this worker has, or had and did not answer yet: each engine is
        told which of its own these are.
        """
        ids: dict[str, list[str]] = {}
        for job in held:
            ids.setdefault(job.reply_to, []).append(job.id)
        return [
            self._notice(to, topic, state, life, running, ids.get(to, []), period)
            for to in listeners
            for topic in self._queues
        ]

    def _notice(
        self,
        listener: str,
        topic: str,
        state: str,
        life: lives.Life,
        running: int,
        ids: list[str],
        period: float | None,
    ) -> env.Envelope:
        tasks = list(self._names) if state == env.READY else []
        body = {"topic": topic, "tasks": tasks}
        if self.plain:
            return env.Envelope(pr.NOTIFY, body, routing_key=listener)
        headers: dict[str, Any] = {
            env.WBE_VERSION: env.VERSION,
            env.WBE_WORKER: self._identity,
            env.WBE_STATE: state,
            env.WBE_QUEUE: self._queues[topic],
            env.WBE_SLOTS: self._slots,
            env.WBE_RUNNING: running,
            env.WBE_LIFE: life.to_header(),
        }
        if state == env.READY:
            headers[env.WBE_SOFTWARE] = __version__
            if self.ledger is not None:
                headers[env.WBE_LEDGER] = self.ledger
        if listener != env.ALL_ENGINES:
            headers[env.WBE_IDS] = ids
        if period is not None:
            headers[env.WBE_PERIOD] = period
        return env.Envelope(pr.NOTIFY, body, routing_key=listener, headers=headers)
