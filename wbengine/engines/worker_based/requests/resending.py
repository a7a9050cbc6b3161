"""Requests that have to be sent again, of an engine that lives: on evidence, never on time alone.

Evidence is that the broker had no queue for a message, or did not confirm it; that every worker of
its queue had a slot free twice, and nobody started it; that a worker was given it a second time;
that whoever held it is gone, or does not name it any more.

With a ledger the row is looked at first, and says what is to be done: what is OPEN is published
again under the same number, which cannot do harm.  Without one the workers are asked, and only what
none of them has is sent again, under the next number.  Where they are too busy to have a slot free,
a question stands in line for it: when that is answered, all that stood before it was taken.

What somebody had who is lost is sent again only if its task may be run twice (`Terms.repeats`), and
`max_resends` times at most.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery.roster import nameless
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import parts
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.entries import Entry
from wbengine.engines.worker_based.requests.reasons import (
    ABSENT,
    AGAIN,
    CANCELLED,
    EXPIRED,
    LAPSE,
    LOST,
    UNSEEN,
    UNSENT,
)
from wbengine.engines.worker_based.types import TopicWorker

__all__ = ["Resending"]

#: Rounds without a word of a request that are evidence.
ROUNDS: Final = 2

#: Whoever told the ledger something within so many periods is not gone.
LIVELY: Final = 1.5

#: Seconds until what had no queue is published again: its workers may be about to make it.
PAUSE: Final = 1.0

#: A line that stood still for so many seconds, or passed a request so long ago, is looked at (or,
#: if that is sooner, two periods ago).
STILL: Final = 5.0
PASSED: Final = 10.0

#: A question that stands in line may be lost if so many others had no answer.
QUESTIONS: Final = 3

#: Seconds that two beats of a worker are apart at least: it may send one for each of its topics.
APART: Final = 0.25

#: So many rows of a long line are looked at when a worker is lost: what he took stands in front,
#: and what does not is found when the line passes it.
FRONT: Final = 250


class Resending(parts.Book):
    """A book's dealings with what it sent and does not hear of."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: What is searched for, without a ledger: what workers say next is waited for.
        self.suspects: dict[str, Entry] = {}
        # When a worker of a queue was lost last.
        self._losses: dict[str, float] = {}
        # The last workers that said goodbye.
        self._goodbyes: deque[str] = deque(maxlen=1000)
        # Since when its holder does not name a request.
        self._absent: dict[str, float] = {}

    # Rounds.

    def review(self, now: float) -> list[Effect]:
        """Look through what was sent and not started; call it once in each round of beats.

        Costs O(requests in the broker) at most; little for each that has not been passed.
        """
        effects: list[Effect] = []
        for entry in list(self.suspects.values()):
            effects += self._review_suspect(entry, now)
        for queue in self._sent.names():
            effects += self._review_line(queue, now)
        for queue in self._backlog.names():
            effects += self._refill(queue, now)  # those before it may have been forgotten
        return effects + self.ask()

    def _review_line(self, queue: str, now: float) -> list[Effect]:
        suspects: dict[str, Entry] = {}
        for entry in self._sent.each(queue):
            if entry.sent_at is None or entry.doubts:
                continue
            if not self._idle(entry):
                break  # those behind it were sent later
            suspects[entry.id] = entry
        if self.ledger is None:
            for entry in suspects.values():
                self._search(entry, UNSENT, now)
            return []
        for entry in self._sent.behind(queue, now - 2 * PASSED):
            if not entry.doubts and self._is_passed(entry, now):
                suspects[entry.id] = entry
        return [fx.Inspect(entry) for entry in suspects.values()]

    def _is_passed(self, entry: Entry, now: float) -> bool:
        sent, least = entry.sent_at, min(PASSED, 2 * self._offers.period)
        return sent is not None and now - sent > least and self._sent.passed(entry)

    def _idle(self, entry: Entry) -> bool:
        return (
            entry.sent_at is not None
            and entry.queue is not None
            and self._offers.idle_rounds(entry.queue, entry.sent_at) >= ROUNDS
        )

    def stalled(self, now: float) -> bool:
        """Whether something waits that workers could explain: they should be asked often."""
        if now < self._curious or self._waiting:
            return True
        return any(self._stands(queue, now) for queue in self._sent.names())

    def _stands(self, queue: str, now: float) -> bool:
        return (
            now - self._sent.moved(queue) > STILL
            and (first := self._sent.first(queue)) is not None
            and now - first.request.since > STILL
        )

    def _publish_again(self, entry: Entry, now: float) -> list[Effect]:
        """Under the same number: where there is a ledger, one of the messages is granted it."""
        entry.sent_at = None
        return self._dispatch(entry, now)

    # What publishing it came to.

    def on_unrouted(self, entry: Entry, epoch: int, now: float) -> list[Effect]:
        """The broker had no queue for a `Dispatch`: nobody will see that message."""
        if entry.live and entry.epoch == epoch and entry.shelf is self._sent:
            entry.sent_at = None
            self._alarms.set(now + PAUSE, AGAIN, entry)
        return []

    def _try_again(self, entry: Entry, now: float) -> list[Effect]:
        if entry.shelf is not self._sent or entry.sent_at is not None:
            return []
        assert entry.queue is not None
        if self._offers.slots(entry.queue):
            return self._publish_again(entry, now)
        self._alarms.set(now + PAUSE, AGAIN, entry)  # who notices that they are gone routes it anew
        return []

    def on_unconfirmed(self, entry: Entry, epoch: int, now: float) -> list[Effect]:
        """Nobody knows whether the broker has the message of a `Dispatch`."""
        if not entry.live or entry.epoch != epoch or entry.shelf is not self._sent:
            return []
        if self.ledger is not None:
            return self._publish_again(entry, now)
        self._search(entry, UNSENT, now)
        return self.ask()

    # Searching, without a ledger.

    def _search(self, entry: Entry, why: str, now: float) -> None:
        """Let whoever has it say so; `ask` has to be called after the last of a turn."""
        if entry.suspect != LOST or not entry.doubts:
            entry.suspect = why
        self.suspects[entry.id] = entry
        if not entry.doubts:
            entry.asked_at = now
            self._doubt(entry, now)
        self.unasked.append(entry)
        if entry.fate is None and not self._idle(entry):
            self._unlined.append(entry)

    def _search_on(self, entry: Entry, now: float) -> list[Effect]:
        """Time passed: the question may be lost, or the answer."""
        self._doubt(entry, now)
        effects: list[Effect] = []
        if entry.fate == CANCELLED:
            effects = self._cancels([entry], env.ALL_WORKERS)
        if entry.state == pr.RUNNING and entry.worker is not None:
            return effects + self._questions([entry], entry.worker)
        self.unasked.append(entry)
        if entry.doubts > QUESTIONS:
            self._unlined.append(entry)
        return effects

    def _review_suspect(self, entry: Entry, now: float) -> list[Effect]:
        if not entry.live or not entry.doubts or entry.suspect is None:
            self.suspects.pop(entry.id, None)
            return []
        if self._offers.missed(entry.asked_at, now):
            entry.asked_at = now  # nobody could be heard: all of it once more
            self.unasked.append(entry)
            return []
        return self._found_nobody(entry, now) if self._nobody_has(entry) else []

    def _nobody_has(self, entry: Entry) -> bool:
        queue = entry.queue
        if queue is None or not self._offers.slots(queue):
            # In a queue that nobody takes from it may wait for long; only a lost one was taken.
            return entry.doubts >= ROUNDS and (entry.suspect == LOST or entry.fate is not None)
        if not self._offers.speaks(queue):
            return False  # such workers cannot be asked
        if entry.suspect in (LOST, ABSENT):
            return self._offers.rounds(queue, entry.asked_at) >= ROUNDS
        return self._offers.idle_rounds(queue, entry.asked_at) >= ROUNDS

    def _found_nobody(self, entry: Entry, now: float) -> list[Effect]:
        self.suspects.pop(entry.id, None)
        entry.doubts, why = 0, entry.suspect
        if entry.fate is not None and entry.state in pr.WAITING_STATES:
            return self._fulfil(entry, now)
        since = entry.sent_at or entry.born
        kept = not entry.risked and self._losses.get(entry.queue or "", -math.inf) <= since
        if why == LOST:
            # A broker that was away gives what was in it as if somebody had been given it before.
            nobody = kept and not entry.ran and self._offers.missed(since, now) > 0
            return self._send(entry, now) if nobody else self._lose(entry, now)
        if kept:
            self._outdate(entry)
            return self._send(entry, now)
        # Whoever was lost since may have had it, and perhaps because of it.
        return self._lose(entry, now)

    def _outdate(self, entry: Entry) -> None:
        """A message of it is nowhere to be found, and may be held up where no question can reach
        it: whoever lives is to leave it alone when it turns up.
        """
        if not self._terms.repeats(entry.invocation.task):
            self._outdated.append((entry.id, entry.next_number - 1))

    def _on_given_twice(self, entry: Entry, now: float) -> list[Effect]:
        """A worker was given what had been given to another; who may run it all the same."""
        if self.ledger is not None:
            if not entry.doubts:
                self._doubt(entry, now)
            return [fx.Inspect(entry)]
        self._search(entry, LOST, now)
        if entry.state == pr.RUNNING and entry.worker is not None:
            self.unasked.remove(entry)
            return self._questions([entry], entry.worker) + self.ask()
        return self.ask()

    def _on_denied(self, entry: Entry, worker: str | None, now: float) -> list[Effect]:
        """Without a ledger: who was asked in person, or took a question in line, has it not."""
        if not entry.doubts or worker is None:
            return []
        if entry.worker is None and entry.state in pr.WAITING_STATES:
            return self._on_passed(entry, now)
        if worker != entry.worker:
            return []
        return self._found_nobody(entry, now) + self.ask()

    def _on_passed(self, entry: Entry, now: float) -> list[Effect]:
        """All before a question was taken.  Again: it may have come late, or been handed back."""
        if entry.suspect == UNSENT:
            entry.suspect = UNSEEN
            self._unlined.append(entry)
        elif entry.suspect == UNSEEN:
            entry.suspect, entry.asked_at = ABSENT, now
            self.unasked.append(entry)
        return self.ask()

    # What workers run.

    def on_ids(self, worker: str, ids: Collection[str], now: float) -> list[Effect]:
        """A worker names what it runs for this engine (or has just ended).

        What is missing in two beats is asked for: its last answer may be lost.
        """
        effects: list[Effect] = []
        for entry in self._held.get(worker):
            if entry.id in ids:
                self._absent.pop(entry.id, None)
                if entry.fate == CANCELLED:
                    effects += self._cancels([entry], worker)
                continue
            first = self._absent.setdefault(entry.id, now)
            if now - first >= APART and not entry.doubts:
                del self._absent[entry.id]
                effects += self._on_absent(entry, worker, now)
        if len(self._absent) > 2 * len(self):
            self._absent.clear()
        return effects

    def _on_absent(self, entry: Entry, worker: str, now: float) -> list[Effect]:
        if self.ledger is not None:
            self._doubt(entry, now)
            return [fx.Inspect(entry)]
        self._search(entry, LOST, now)
        self.unasked.remove(entry)
        return self._questions([entry], worker)

    # Workers that are gone.

    def on_lost(self, workers: Iterable[TopicWorker], now: float) -> list[Effect]:
        """Workers that stopped or fell silent.

        What they claimed and did not finish is lost: whether it happened is unknown.  What nobody
        claimed is left to the other workers of its queue; without any, it is routed anew.  Where
        there is a ledger it says which is which, so that nothing rests on the order in which news
        arrive; without one, another queue takes another number.
        """
        effects: list[Effect] = []
        for worker in workers:
            name = worker.identity if isinstance(worker.identity, str) else None
            held = self._held.get(name or nameless(worker.queue))
            idle = self._offers.slots(worker.queue) == 0
            self._losses[worker.queue] = now
            if name is not None and worker.goodbye:
                self._goodbyes.append(name)
            for entry in held:
                entry.lost = name
                effects += self._inspect_or(self._lose, entry, name, now)
            if idle:
                while waiting := self._backlog.first(worker.queue):
                    effects += self._reroute(waiting, now)
            if idle or self.ledger is not None:
                for entry in self._sent.get(worker.queue, None if idle else FRONT):
                    effects += self._inspect_or(self._reroute, entry, name, now)
        return effects

    def _lives(self, holder: str, silence: float | None) -> bool:
        """Whether a worker that was taken for lost lives, as its ledger knows: it was frozen."""
        if silence is None or holder in self._goodbyes:
            return False
        return silence < LIVELY * self._offers.period

    def _inspect_or(
        self, otherwise: Any, entry: Entry, lost: str | None, now: float
    ) -> list[Effect]:
        if self.ledger is not None:
            return [fx.Inspect(entry, lost)]
        effects: list[Effect] = otherwise(entry, now)
        return effects

    def _reroute(self, entry: Entry, now: float) -> list[Effect]:
        # PENDING back to WAITING is no move of the protocol: this is the same wait, begun again.
        entry.request.current_state = pr.WAITING
        return self._route_from_line(entry, now)

    def _route_from_line(self, entry: Entry, now: float) -> list[Effect]:
        """Its place in the line, if it had one, is another's from now on."""
        queue = entry.key if entry.shelf is self._sent else None
        entry.leave()
        effects = self._route(entry, now)
        if queue is not None and self._offers.slots(queue):
            effects += self._refill(queue, now)
        return effects

    def _route_again(self, entry: Entry, queue: str, now: float) -> list[Effect]:
        """Without a ledger: a message of it is out, and may still be taken by somebody."""
        if queue != entry.queue and self.plain:
            self._wait(entry, now)  # whoever has it may answer yet
            return []
        if queue != entry.queue:
            if entry.resends >= self._terms.max_resends:
                return self._settle(entry, entry.unknown(), now=now)
            entry.resends += 1
            entry.next_epoch(entry.next_number)
            entry.queue = None
            return self._route(entry, now)
        entry.asked_at = now
        entry.request.transition(pr.PENDING)
        self._sent.put(queue, entry)
        if entry.sent_at is not None:
            entry.risked = entry.risked or self._losses.get(queue, -math.inf) > entry.sent_at
            entry.sent_at = now  # those who are there now have not passed it by yet
        self._start_clock(entry, now)
        return []

    def _gone(
        self, entry: Entry, worker: str | None, now: float, rowless: bool = False
    ) -> list[Effect]:
        effects = self._started(entry, None, now)
        return effects + self._lose(entry, now, worker, rowless, held=not rowless)

    def _lose(
        self,
        entry: Entry,
        now: float,
        worker: str | None = None,
        rowless: bool = False,
        held: bool = False,
    ) -> list[Effect]:
        """Whoever had it is gone (`rowless`: and its row is; `held`: his row is there): send it
        again, where that does no harm.
        """
        entry.worker = worker or entry.worker
        over = self.plain or (entry.lapse is not None and now >= entry.lapse)
        over = over or entry.resends >= self._terms.max_resends
        ends = over or entry.fate == CANCELLED or not self._terms.repeats(entry.invocation.task)
        if ends and not (held and entry.worker is not None):
            return self._settle(entry, entry.unknown(), now=now)
        if self.ledger is not None and not rowless:
            if not entry.doubts:
                self._doubt(entry, now)  # the ledger may not be there to be asked
            if ends:
                return [fx.Conclude(entry, entry.worker or "", entry.unknown())]
            return [fx.Reopen(entry, entry.next_number)]
        entry.resends += 1
        return self._send(entry, now)

    def _send(self, entry: Entry, now: float) -> list[Effect]:
        """Nobody runs it, or may not end it; nobody will under the numbers used so far."""
        if entry.fate is not None:
            return self._fulfil(entry, now)
        if entry.lapse is not None and now >= entry.lapse:
            entry.fate = EXPIRED
            return self._fulfil(entry, now)
        entry.worker = entry.lost = entry.queue = None
        entry.denied = False
        left = entry.shelf is self._left
        entry.next_epoch(entry.next_number)
        if left and entry.lapse is not None:
            self._alarms.set(entry.lapse, LAPSE, entry)
        if left and self.ledger is None:
            entry.floor = 0  # whichever run of this attempt it was, its end is one
        entry.request.current_state = pr.WAITING  # as when it is routed anew
        return self._route_from_line(entry, now)
