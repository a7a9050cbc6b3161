"""Inquiries to workers about requests, collected during an event and sent in few messages."""

from __future__ import annotations

import dataclasses

from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import worker_commands
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.tracked import TrackedRequest


class Inquiries:
    def __init__(self) -> None:
        #: Whether `take` has anything to send.
        self.pending = False
        # By recipient. Inquiries in queues have the priority of their requests.
        self._asked: dict[tuple[str, int | None], dict[str, TrackedRequest]] = {}
        # Ids with the highest epoch of requests that no worker may start any more.
        self._refused: list[worker_commands.Named] = []

    def ask(self, tracked: TrackedRequest, to: str) -> None:
        self._asked.setdefault((to, None), {})[tracked.id] = tracked
        self.pending = True

    def ask_queue(self, tracked: TrackedRequest) -> None:
        """Add an inquiry in the queue: a reply proves that all earlier messages were consumed."""
        assert tracked.queue is not None
        recipient = tracked.queue, tracked.broker_priority
        self._asked.setdefault(recipient, {})[tracked.id] = tracked
        self.pending = True

    def refuse(self, tracked: TrackedRequest) -> None:
        self._refused.append((tracked.id, tracked.next_number - 1))
        self.pending = True

    def take(self, reply_to: str) -> list[Effect]:
        """Return the messages, without requests that were found meanwhile."""
        asked, self._asked = self._asked, {}
        refused, self._refused = self._refused, []
        self.pending = False
        effects: list[Effect] = []
        for (to, priority), requests in asked.items():
            named = [(each.id, each.number) for each in requests.values() if each.in_doubt]
            for inquiry in worker_commands.inquiries(named, to, reply_to):
                if priority is not None:
                    inquiry = dataclasses.replace(inquiry, priority=priority, persistent=True)
                effects.append(fx.Inquire(inquiry))
        orders = worker_commands.cancellations(refused, env.ALL_WORKERS)
        return effects + [fx.Cancel(order) for order in orders]
