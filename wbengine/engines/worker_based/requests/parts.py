"""What the parts of a `RequestBook` know, and need, of each other."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wbengine import invocation
from wbengine.engines.worker_based.discovery.offers import Offers
from wbengine.engines.worker_based.messages import asking, cancelling
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import onlooking
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.entries import Alarms, Backlog, Entry, Line, Shelf
from wbengine.engines.worker_based.requests.reasons import LOOK, UNSEEN, UNSENT
from wbengine.engines.worker_based.requests.terms import Terms

__all__ = ["MOST_PATIENCE", "PATIENCE", "Book"]

#: Seconds until whoever was asked for a request is asked again; each time it takes twice as long,
#: and in the end so long.
PATIENCE = 3.0
MOST_PATIENCE = 60.0


class Book(abc.ABC):
    """All requests of one executor; `book` says what becomes of them as a rule, `resending` and
    `recovering` what does when somebody is lost, `ending` when nobody wants them any more.
    """

    def __init__(
        self,
        reply_to: str,
        offers: Offers,
        timeout: float | None,
        ledger: str | None,
        terms: Terms,
        wall: Callable[[], float],
    ) -> None:
        self._reply_to = reply_to
        self._offers = offers
        self._timeout = timeout
        #: The digest of the ledger in which requests have their rows; None: there is none.
        self.ledger = ledger
        #: Whether the workers are TaskFlow's: answers have no numbers, so nothing is sent again.
        self.plain = False
        self._terms = terms
        self._wall = wall
        self._closed: str | None = None
        self._waiting = Shelf()  # by task class
        self._deferred = Shelf()  # until their time comes
        self._backlog = Backlog()  # by queue
        self._sent = Line()  # by queue
        self._held = Shelf()  # by worker
        self._left = Shelf()  # what an earlier run left, until it is known where it is
        self._alarms = Alarms()
        #: Who is told of what is sent, and of what ends: see `onlooking`.
        self.onlookers: tuple[onlooking.Onlooker, ...] = ()
        #: What all workers are still to be asked for, without a ledger: see `ask`.
        self.unasked: list[Entry] = []
        # What is to be asked for in its line, and what nobody is to begin any more, up to which
        # number.
        self._unlined: list[Entry] = []
        self._outdated: list[cancelling.Named] = []
        # Until when workers should be heard of often, because it matters what they say.
        self._curious = 0.0

    # Asking.

    def ask(self) -> list[Effect]:
        """Ask all workers for what was noted since the last time, in few messages."""
        entries, self.unasked = self.unasked, []
        asked = [entry for entry in entries if entry.live and entry.doubts]
        effects = self._questions(asked, env.ALL_WORKERS)
        if self._outdated:
            outdated, self._outdated = self._outdated, []
            effects += map(fx.Cancel, cancelling.orders(outdated, env.ALL_WORKERS))
        if self._unlined:
            entries, self._unlined = self._unlined, []
            effects += self._ask_lines(entries)
        return effects

    def _ask_lines(self, entries: Iterable[Entry]) -> list[Effect]:
        """Questions that stand in line behind what they ask for, if it is there."""
        lines: dict[tuple[str, int], list[Entry]] = {}
        for entry in entries:
            queue = entry.queue
            if not entry.live or not entry.doubts or entry.suspect not in (UNSENT, UNSEEN):
                continue
            if queue is not None and self._offers.speaks(queue):
                priority = min(9, max(0, entry.invocation.priority))
                lines.setdefault((queue, priority), []).append(entry)
        effects: list[Effect] = []
        for (queue, priority), found in lines.items():
            asked = [(entry.id, entry.number) for entry in found]
            for question in asking.questions(asked, queue, self._reply_to):
                made = dataclasses.replace(question, priority=priority, persistent=True)
                effects.append(fx.Ask(made))
        return effects

    def _questions(self, entries: Iterable[Entry], to: str) -> list[Effect]:
        asked = [(entry.id, entry.number) for entry in entries]
        return [fx.Ask(question) for question in asking.questions(asked, to, self._reply_to)]

    def _cancels(self, entries: Iterable[Entry], to: str) -> list[Effect]:
        named = [(entry.id, entry.number) for entry in entries]
        return [fx.Cancel(order) for order in cancelling.orders(named, to)]

    def _doubt(self, entry: Entry, now: float) -> None:
        pause = min(MOST_PATIENCE, PATIENCE * 2 ** min(entry.doubts, 10))
        entry.doubts += 1
        self._curious = max(self._curious, now + 2 * MOST_PATIENCE)
        self._alarms.set(now + pause, LOOK, entry)

    # What the parts do for each other.

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many requests there are."""

    @abc.abstractmethod
    def on_response(self, answer: env.Envelope, receipt: Any, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _admit(self, call: invocation.Invocation, done: invocation.Done, now: float) -> Entry: ...

    @abc.abstractmethod
    def _route(self, entry: Entry, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _refill(self, queue: str, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _wait(self, entry: Entry, now: float) -> None: ...

    @abc.abstractmethod
    def _load(self, queue: str) -> int: ...

    @abc.abstractmethod
    def _dispatch(self, entry: Entry, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _start_clock(self, entry: Entry, now: float) -> None: ...

    @abc.abstractmethod
    def _started(
        self, entry: Entry, worker: str | None, now: float, ends: bool = False
    ) -> list[Effect]: ...

    @abc.abstractmethod
    def _hold(self, entry: Entry, worker: str, silence: float = 0.0) -> None: ...

    @abc.abstractmethod
    def _settle(self, entry: Entry, value: Any, *, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _leave_undone(self, entry: Entry, reason: str) -> list[Effect]: ...

    @abc.abstractmethod
    def _time_out(self, entry: Entry, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def retired(self, calls: Iterable[invocation.Invocation]) -> list[Effect]: ...

    @abc.abstractmethod
    def _all(self, flow: str | None) -> Iterator[Entry]: ...

    @abc.abstractmethod
    def _strike(self, entry: Entry) -> None: ...

    @abc.abstractmethod
    def forget(self, entry: Entry) -> None: ...

    @abc.abstractmethod
    def _lose(
        self,
        entry: Entry,
        now: float,
        worker: str | None = None,
        rowless: bool = False,
        held: bool = False,
    ) -> list[Effect]: ...

    @abc.abstractmethod
    def _send(self, entry: Entry, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _fulfil(self, entry: Entry, now: float) -> list[Effect]: ...
