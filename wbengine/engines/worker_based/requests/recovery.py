"""Requests of which nothing is heard, and those that an earlier run of their flow left.

*Of an engine that lives*, a request is sent again on evidence, never on time alone.  Evidence is
that the broker had no queue for a message, or did not confirm it; that every worker of its queue
had a slot free twice, and none started it; that a worker was given it a second time; that its
holder is gone, or does not name it any more.

With a ledger the row is looked at first, and says what is to be done: an OPEN request is published
again under the same number, which cannot do harm.  Without one the workers are asked, and only a
request that none of them has is sent again, under the next number.  Where they are too busy to have
a slot free, a question stands in line for it: when that is answered, all that stood before it was
taken.  A request that a lost worker had is sent again only if its task may be run twice
(`RequestOptions.repeats`), and `max_resends` times at most.

*Of an earlier run*: a request that it may have sent is *inherited*: nothing is published until it
is known that no worker runs it, and none will.  With a ledger its row tells; without one the
workers are asked, who can tell what they run, and a question in line tells what waits in a queue of
the broker.

A request is looked for (`TrackedRequest.lookups`) as long as no worker has promised to answer here:
its holder is asked to, again and again, and each time the row is looked at before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import invocation, states
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery.roster import TopicWorker, nameless
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.tracked import (
    ABSENT,
    CANCELLED,
    EXPIRED,
    EXPIRY,
    LOOKUP,
    LOST,
    REFUSED,
    REPUBLISH,
    TIMEOUT,
    UNSEEN,
    UNSENT,
    TrackedRequest,
)
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based.requests.tracker import RequestTracker

LOG = logging.getLogger(__name__)

#: Seconds until a request is looked for again; each time it takes twice as long, and in the end so
#: long.
LOOKUP_PAUSE: Final = 3.0
LONGEST_LOOKUP_PAUSE: Final = 60.0

#: The state of a row whose ledger could not be asked.
UNKNOWN: Final = "UNKNOWN"

#: So many answers at most wait for their requests to be taken up.
MOST_EARLY: Final = 10_000

#: Rounds without a word of a request that are evidence.
ROUNDS: Final = 2

#: A worker that told the ledger something within so many periods is not gone.
LIVELY: Final = 1.5

#: Seconds until a message that had no queue is published again: workers may be about to make it.
PAUSE: Final = 1.0

#: A line that stood still for so many seconds, or passed a request so long ago, is looked at (or,
#: if that is sooner, two periods ago).
STANDSTILL: Final = 5.0
PASSED: Final = 10.0

#: A question that stands in line may be lost if so many others had no answer.
QUESTIONS: Final = 3

#: Seconds that two beats of a worker are apart at least: it may send one for each of its topics.
APART: Final = 0.25

#: So many rows of a long line are looked at when a worker is lost: the requests that it took stand
#: in front, and others are found when the line passes them.
FRONT: Final = 250


#: So much is told of why a request was put aside.
_LONGEST_REASON: Final = 500


class Seen(NamedTuple):
    """A row of the ledger, as far as a tracker needs it.

    `state` is None when there is none, and `UNKNOWN` when the ledger could not be asked.  `result`
    is the answer of one that is DONE (None: nobody can read it).  `silence` is for how many seconds
    its holder told the ledger nothing; `silent` that this is too long.
    """

    state: str | None
    holder: str | None = None
    result: env.Envelope | None = None
    epoch: int | None = None
    silent: bool = False
    silence: float | None = None


class Recovery:
    """A tracker's requests that may be under way although nothing was heard of them lately."""

    def __init__(self, tracker: RequestTracker) -> None:
        self._tracker = tracker
        self._offers, self._options = tracker.offers, tracker.options
        self._timers = tracker.timers
        self._in_flight, self._inherited = tracker.in_flight, tracker.inherited
        # The ledgers that earlier runs of flows may have used, by the flow's uuid.
        self._origins: dict[str, Collection[str | None]] = {}
        #: Whether answers may come to requests of an earlier run, before these are taken up.
        self.inherits = False
        self.early: OrderedDict[str, tuple[env.Envelope, Any]] = OrderedDict()
        #: What is searched for, without a ledger: what workers say next is waited for.
        self.suspects: dict[str, TrackedRequest] = {}
        #: What all workers are still to be asked for, without a ledger: see `ask`.
        self.unasked: list[TrackedRequest] = []
        # What is to be asked for in its line, and what no worker is to begin any more, up to which
        # number.
        self._unlined: list[TrackedRequest] = []
        self._outdated: list[commands.Named] = []
        # Until when workers should be heard of often, because it matters what they say.
        self._curious = 0.0
        # When a worker of a queue was lost last.
        self._losses: dict[str, float] = {}
        # The last workers that said goodbye.
        self._goodbyes: deque[str] = deque(maxlen=1000)
        # Since when its holder does not name a request.
        self._absent: dict[str, float] = {}

    # Requests of earlier runs.

    def expect(self, flow: str, used: Collection[str | None] | None) -> None:
        """Earlier runs of a flow may have left requests; their rows are in the ledgers `used`.

        None among them: there were requests without a ledger.  Nothing at all: it sent none so far.
        Of a flow that nothing is said of (None), the present ledger is thought to have all.
        """
        if used is None:
            self._origins.pop(flow, None)
        else:
            self._origins[flow] = used

    def inherit(self, reply_to: str) -> None:
        """Take the name of a tracker that is gone: there may be answers to its requests."""
        self._tracker.reply_to = reply_to
        self.inherits = True

    def recover(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Take on a request that an earlier run may have sent already.

        Without a ledger, `ask` has to be called after the last of a turn.

        :raises Duplicate: as `submit`.
        """
        tracked = self._tracker.admit(call, done, now)
        if self._tracker.closed is not None:
            return self._tracker.leave_undone(tracked, self._tracker.closed)
        if not self._origin(tracked):
            return self._tracker.keep_times(tracked, now) or self._tracker.route(tracked, now)
        with contextlib.suppress(TypeError, ValueError):  # an earlier run would have failed of it
            self._tracker.read_times(tracked, now)
        if self._tracker.plain:  # such workers cannot be asked, and will not answer here
            if self._options.repeats(call.task):
                return self._tracker.route(tracked, now)
            return self._tracker.settle(tracked, tracked.loss(), now=now)
        tracked.dispatched = True
        self._inherited.put(tracked.task_cls, tracked)
        if self._tracker.ledger is not None:
            return self._look_up(tracked, now)
        self.look_later(tracked, now)
        tracked.lowest_epoch = 0  # the end of any run of this attempt is its end
        if tracked.id in self.early:
            return self.hear_early(tracked, now)
        self.unasked.append(tracked)
        return []

    def _origin(self, tracked: TrackedRequest) -> Collection[str | None]:
        return self._origins.get(tracked.invocation.flow_uuid, (self._tracker.ledger,))

    def _start_last_clock(self, tracked: TrackedRequest, now: float) -> None:
        # Also where requests wait for ever: nothing says that this one still waits anywhere.
        timeout = (
            self._tracker.timeout
            if self._tracker.timeout is not None
            else float(pr.REQUEST_TIMEOUT)
        )
        tracked.request.timeout, tracked.request.since = timeout, now
        self._timers.set(now + timeout, TIMEOUT, tracked)

    def give_up(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """An inherited request's time is over: without a ledger its fate cannot be known."""
        queue = self._offers.queue_for(tracked.task_cls, self._tracker.load)
        if queue is not None and self._offers.slots(queue) and not self._offers.free(queue):
            self._start_last_clock(tracked, now)  # a busy fleet may not have come to it
            return []
        return self.lose(tracked, now)

    def hear_early(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        answer, receipt = self.early.pop(tracked.id)
        if self._tracker.ledger is None:  # the end of any run of this attempt is its end
            tracked.adopt(answer.number(env.WBE_EPOCH, tracked.epoch))
        return self._tracker.on_response(answer, receipt, now)

    def keep_early(self, answer: env.Envelope, receipt: Any) -> list[Effect]:
        """Keep an answer to a request that may yet be taken up."""
        if answer.correlation_id in self.early:
            return [fx.Acknowledge(receipt)]
        self.early[answer.correlation_id or ""] = answer, receipt
        if len(self.early) > MOST_EARLY:
            return [fx.Acknowledge(self.early.popitem(last=False)[1][1])]
        return []

    # Looking for a request: in its row, or, without a ledger, by asking the workers.

    def look_later(self, tracked: TrackedRequest, now: float) -> None:
        pause = min(LONGEST_LOOKUP_PAUSE, LOOKUP_PAUSE * 2 ** min(tracked.lookups, 10))
        tracked.lookups += 1
        self._curious = max(self._curious, now + 2 * LONGEST_LOOKUP_PAUSE)
        self._timers.set(now + pause, LOOKUP, tracked)

    def _look_up(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Look at its row now, and again some time."""
        self.look_later(tracked, now)
        return [fx.Inspect(tracked)]

    def look(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Time passed, and no worker has promised to answer."""
        if not tracked.lookups:
            return []
        if self._tracker.ledger is not None:
            return self._look_up(tracked, now)
        if tracked.index is not self._inherited:
            return self._search_on(tracked, now)
        if tracked.pending_outcome is not None or self._options.repeats(tracked.invocation.task):
            return self.send(tracked, now)
        if tracked.state == pr.WAITING:
            # It may wait in a queue of the broker, for as long as any request may.
            tracked.request.transition(pr.PENDING)
            self._start_last_clock(tracked, now)
        return self._search_on(tracked, now)

    def _on_unknown_row(self, tracked: TrackedRequest, now: float, lost: str | None) -> None:
        """The ledger cannot be asked: the row is looked at again later."""
        if tracked.lookups:
            return  # it is anyway
        if tracked.state == pr.RUNNING or tracked.pending_outcome is not None or lost is not None:
            self.look_later(tracked, now)
        elif tracked.request.expired_at(now):
            self._tracker.start_clock(tracked, now)

    def ask(self) -> list[Effect]:
        """Ask all workers for what was noted since the last time, in few messages."""
        found, self.unasked = self.unasked, []
        asked = [tracked for tracked in found if tracked.live and tracked.lookups]
        effects = self.questions(asked, env.ALL_WORKERS)
        if self._outdated:
            outdated, self._outdated = self._outdated, []
            effects += map(fx.Cancel, commands.cancellations(outdated, env.ALL_WORKERS))
        if self._unlined:
            found, self._unlined = self._unlined, []
            effects += self._ask_lines(found)
        return effects

    def _ask_lines(self, found: Iterable[TrackedRequest]) -> list[Effect]:
        """Questions that stand in line behind what they ask for, if it is there."""
        lines: dict[tuple[str, int], list[TrackedRequest]] = {}
        for tracked in found:
            queue = tracked.queue
            if not tracked.live or not tracked.lookups or tracked.suspect not in (UNSENT, UNSEEN):
                continue
            if queue is not None and self._offers.speaks(queue):
                priority = min(9, max(0, tracked.invocation.priority))
                lines.setdefault((queue, priority), []).append(tracked)
        effects: list[Effect] = []
        for (queue, priority), found in lines.items():
            asked = [(tracked.id, tracked.number) for tracked in found]
            for question in commands.questions(asked, queue, self._tracker.reply_to):
                made = dataclasses.replace(question, priority=priority, persistent=True)
                effects.append(fx.Ask(made))
        return effects

    def questions(self, found: Iterable[TrackedRequest], to: str) -> list[Effect]:
        asked = [(tracked.id, tracked.number) for tracked in found]
        return [
            fx.Ask(question) for question in commands.questions(asked, to, self._tracker.reply_to)
        ]

    def search(self, tracked: TrackedRequest, why: str, now: float) -> None:
        """Let the worker that has it say so; call `ask` after the last of a turn."""
        if tracked.suspect != LOST or not tracked.lookups:
            tracked.suspect = why
        self.suspects[tracked.id] = tracked
        if not tracked.lookups:
            tracked.asked_at = now
            self.look_later(tracked, now)
        self.unasked.append(tracked)
        if tracked.pending_outcome is None and not self._idle(tracked):
            self._unlined.append(tracked)

    def _search_on(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Time passed: the question may be lost, or the answer."""
        self.look_later(tracked, now)
        effects: list[Effect] = []
        if tracked.pending_outcome == CANCELLED:
            effects = self._tracker.cancels([tracked], env.ALL_WORKERS)
        if tracked.state == pr.RUNNING and tracked.worker is not None:
            return effects + self.questions([tracked], tracked.worker)
        self.unasked.append(tracked)
        if tracked.lookups > QUESTIONS:
            self._unlined.append(tracked)
        return effects

    def _review_suspect(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if not tracked.live or not tracked.lookups or tracked.suspect is None:
            self.suspects.pop(tracked.id, None)
            return []
        if self._offers.missed(tracked.asked_at, now):
            tracked.asked_at = now  # no worker could be heard: all of it once more
            self.unasked.append(tracked)
            return []
        if tracked.index is self._inherited and self._may_be_unheard(tracked, now):
            return []
        return self._on_not_found(tracked, now) if self._is_nowhere(tracked) else []

    def _may_be_unheard(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether a worker that was there before this engine, and has it, may live although it was
        not heard of yet.
        """
        heard = now - tracked.born - self._offers.missed(tracked.born, now)
        return heard <= self._offers.patience

    def _is_nowhere(self, tracked: TrackedRequest) -> bool:
        queue = tracked.queue
        if queue is None or not self._offers.slots(queue):
            # In a queue without workers it may wait for long; only a lost one was taken.
            return tracked.lookups >= ROUNDS and (
                tracked.suspect == LOST or tracked.pending_outcome is not None
            )
        if not self._offers.speaks(queue):
            return False  # such workers cannot be asked
        if tracked.suspect in (LOST, ABSENT):
            return self._offers.rounds(queue, tracked.asked_at) >= ROUNDS
        return self._offers.idle_rounds(queue, tracked.asked_at) >= ROUNDS

    def _on_not_found(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        self.suspects.pop(tracked.id, None)
        tracked.lookups, why = 0, tracked.suspect
        if tracked.pending_outcome is not None and tracked.state in pr.WAITING_STATES:
            return self._tracker.end_unstarted(tracked, now)
        if tracked.index is self._inherited:  # nobody knows who was lost before this engine came
            self._outdate(tracked)
            return self.lose(tracked, now)
        since = tracked.sent_at or tracked.born
        kept = not tracked.maybe_lost and self._losses.get(tracked.queue or "", -math.inf) <= since
        if why == LOST:
            # A broker that was away marks what was in it as redelivered.
            untaken = kept and not tracked.ran and self._offers.missed(since, now) > 0
            return self.send(tracked, now) if untaken else self.lose(tracked, now)
        if kept:
            self._outdate(tracked)
            return self.send(tracked, now)
        # A worker that was lost since may have had it, and perhaps because of it.
        return self.lose(tracked, now)

    def _outdate(self, tracked: TrackedRequest) -> None:
        """A message of it was not found, and may be held up where no question reaches it: live
        workers are to drop it when it turns up.
        """
        if not self._options.repeats(tracked.invocation.task):
            self._outdated.append((tracked.id, tracked.next_number - 1))

    def on_given_twice(
        self, tracked: TrackedRequest, answer: env.Envelope, now: float
    ) -> list[Effect]:
        """A worker was given a message that another, who may run it, was given before."""
        if self._tracker.ledger is not None:
            return [fx.Inspect(tracked)] if tracked.lookups else self._look_up(tracked, now)
        waits = tracked.state in pr.WAITING_STATES and tracked.index is not self._inherited
        if waits and answer.number(env.WBE_EPOCH, tracked.epoch) < tracked.epoch:
            return []  # of an earlier run's message; nothing is known against the one that followed
        self.search(tracked, LOST, now)
        if tracked.state == pr.RUNNING and tracked.worker is not None:
            self.unasked.remove(tracked)
            return self.questions([tracked], tracked.worker) + self.ask()
        return self.ask()

    def on_told(self, tracked: TrackedRequest, answer: env.Envelope, now: float) -> list[Effect]:
        """A worker says where a request is: it runs it and answers here, or it does not run it.

        Number 0 is told unasked, by a worker that was given a request which another one holds, or
        which it answers to another address.
        """
        number, worker = answer.number(env.WBE_ASK), answer.text(env.WBE_WORKER)
        if answer.body["state"] == pr.RUNNING:
            if number != tracked.number or not tracked.speaks_of(answer):
                return []
            tracked.lookups = 0
            if tracked.claimed and env.WBE_STARTED in answer.headers:
                return self._tracker.began(tracked, worker)
            return []
        if number and number != tracked.number:
            return []
        if self._tracker.ledger is None:
            return self._on_denied(tracked, worker, now) if number else []
        if number:
            tracked.denied = worker == tracked.worker
            return [fx.Inspect(tracked)] if tracked.lookups and tracked.denied else []
        if tracked.state == pr.RUNNING or tracked.lookups:
            return []
        return self._look_up(tracked, now)

    def _on_denied(self, tracked: TrackedRequest, worker: str | None, now: float) -> list[Effect]:
        """Without a ledger: a worker that was asked, or took a question in line, has it not."""
        if not tracked.lookups or worker is None:
            return []
        if tracked.worker is None and tracked.state in pr.WAITING_STATES:
            return self._on_passed(tracked, now)
        if worker != tracked.worker:
            return []
        return self._on_not_found(tracked, now) + self.ask()

    def _on_passed(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """All before a question was taken.  Again: it may have come late, or been handed back."""
        if tracked.suspect == UNSENT:
            tracked.suspect = UNSEEN
            self._unlined.append(tracked)
        elif tracked.suspect == UNSEEN:
            tracked.suspect, tracked.asked_at = ABSENT, now
            self.unasked.append(tracked)
        return self.ask()

    # Rounds.

    def review(self, now: float) -> list[Effect]:
        """Look through what was sent and not started; call it once in each round of beats.

        Costs O(requests in the broker) at most; little for each that has not been passed.
        """
        effects: list[Effect] = []
        if self._tracker.ledger is None:
            self._search_inherited(now)
        for tracked in list(self.suspects.values()):
            effects += self._review_suspect(tracked, now)
        for queue in self._in_flight.names():
            effects += self._review_line(queue, now)
        for queue in self._tracker.backlog.names():
            effects += self._tracker.refill(queue, now)  # those before it may have been forgotten
        return effects + self.ask()

    def _search_inherited(self, now: float) -> None:
        """What an earlier run sent may wait where it is still to be taken, or be lost: a question
        that stands behind it tells.
        """
        for task_cls in self._inherited.names():
            queues = self._offers.queues(task_cls)
            if len(queues) != 1:
                continue  # nobody knows where it was sent
            for tracked in self._inherited.each(task_cls):
                if tracked.suspect is not None or self._options.repeats(tracked.invocation.task):
                    continue
                if self._offers.rounds(queues[0], tracked.asked_at):
                    tracked.queue = queues[0]
                    self.search(tracked, UNSENT, now)

    def _review_line(self, queue: str, now: float) -> list[Effect]:
        suspects: dict[str, TrackedRequest] = {}
        for tracked in self._in_flight.each(queue):
            if tracked.sent_at is None or tracked.lookups:
                continue
            if not self._idle(tracked):
                break  # those behind it were sent later
            if self._tracker.ledger is None or self._may_repeat(tracked, now):
                suspects[tracked.id] = tracked
        if self._tracker.ledger is None:
            for tracked in suspects.values():
                self.search(tracked, UNSENT, now)
            return []
        for tracked in self._in_flight.behind(queue, now - 2 * PASSED):
            passed = not tracked.lookups and self._is_passed(tracked, now)
            if passed and self._may_repeat(tracked, now):
                suspects[tracked.id] = tracked
        if self._stands(queue, now):
            # A worker may have died as soon as it had claimed one.  It is known to owe an answer
            # from now on, and its silence is noticed as that of any other.
            for tracked in self._in_flight.get(queue, min(FRONT, self._offers.free(queue))):
                if tracked.sent_at is not None and not tracked.lookups:
                    suspects[tracked.id] = tracked
        return [fx.Inspect(tracked) for tracked in suspects.values()]

    def _is_passed(self, tracked: TrackedRequest, now: float) -> bool:
        sent, least = tracked.sent_at, min(PASSED, 2 * self._offers.period)
        return sent is not None and now - sent > least and self._in_flight.passed(tracked)

    def _idle(self, tracked: TrackedRequest) -> bool:
        return (
            tracked.sent_at is not None
            and tracked.queue is not None
            and self._offers.idle_rounds(tracked.queue, tracked.sent_at) >= ROUNDS
        )

    def _may_repeat(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether another message may go out under its number, of which there may be some: copies
        stand in the line, too, and where all is slow they would come faster than they are taken.
        """
        pause = LOOKUP_PAUSE * 2 ** min(tracked.sendings, 10) if tracked.sendings > 1 else 0.0
        return now - (tracked.sent_at or -math.inf) >= min(LONGEST_LOOKUP_PAUSE, pause)

    def stalled(self, now: float) -> bool:
        """Whether something waits that workers could explain: they should be asked often."""
        if now < self._curious or self._tracker.waiting:
            return True
        return any(self._stands(queue, now) for queue in self._in_flight.names())

    def _stands(self, queue: str, now: float) -> bool:
        return (
            now - self._in_flight.moved(queue) > STANDSTILL
            and (first := self._in_flight.first(queue)) is not None
            and now - first.request.since > STANDSTILL
        )

    # Rows.

    def on_row(
        self, tracked: TrackedRequest, seen: Seen, now: float, lost: str | None = None
    ) -> list[Effect]:
        """What an `Inspect` found; `lost` is the `Inspect`'s."""
        if not tracked.live:
            return []
        state, holder = seen.state, seen.holder
        if state == ledgers.ROW_DONE:
            if seen.result is None:  # nobody can read what it came to
                return self._tracker.settle(tracked, tracked.loss(), now=now)
            if tracked.lookups:
                tracked.adopt(seen.result.number(env.WBE_EPOCH, tracked.epoch))
            _, receipt = self.early.pop(tracked.id, (None, None))
            return self._tracker.on_response(seen.result, receipt, now, stored=True)
        if state == ledgers.ROW_CLAIMED and tracked.refused is not None:
            tracked.refused = None  # who said so does not have it
            if tracked.pending_outcome == REFUSED:
                tracked.pending_outcome = None
        if state == ledgers.ROW_CLAIMED and holder is not None:
            gone = holder in (lost, tracked.lost) and not self._lives(holder, seen.silence)
            if tracked.lookups:
                return self._on_holder(tracked, holder, seen.epoch, seen.silent or gone, now)
            if gone and holder == lost:
                return self._gone(tracked, holder, now)
            effects = self._tracker.started(tracked, holder, now, waits=True)
            if tracked.worker != holder or seen.silence:
                self._tracker.hold(tracked, holder, seen.silence or 0.0)
            return effects
        if state == UNKNOWN:
            self._on_unknown_row(tracked, now, lost)
            return []
        if tracked.index is self._inherited:
            if state == ledgers.ROW_OPEN:
                later = seen.epoch is not None and seen.epoch > tracked.number
                return [] if later else [fx.Revoke(tracked)]  # later: another owner's by now
            return self._on_nothing(tracked, now)
        if tracked.state == pr.RUNNING:
            # It was claimed, and is not any more.
            if not (tracked.lookups or tracked.worker == lost):
                return []
            if state == ledgers.ROW_OPEN and seen.epoch == tracked.epoch and tracked.claimed:
                return self._send_unbegun(tracked, now)
            return self.lose(tracked, now, rowless=state is None)
        tracked.lookups = 0
        return self._on_unclaimed(tracked, seen, now, lost)

    def _on_unclaimed(
        self, tracked: TrackedRequest, seen: Seen, now: float, lost: str | None
    ) -> list[Effect]:
        """No worker has it: its row is OPEN, or not made yet, or vanished."""
        if seen.state is None and tracked.opened:
            return self._gone(tracked, lost, now, rowless=True)  # it cannot be known who took it
        if tracked.refused is not None and tracked.pending_outcome is None:
            tracked.pending_outcome = REFUSED
        if tracked.pending_outcome is not None:
            ours = seen.epoch is None or seen.epoch <= tracked.number
            if seen.state is None:
                return self._tracker.end_unstarted(tracked, now)
            return [fx.Revoke(tracked)] if ours else []
        if tracked.index is self._in_flight and tracked.queue is not None:
            if self._offers.slots(tracked.queue) == 0:
                return self._reroute(tracked, now)
            passed = self._idle(tracked) or self._is_passed(tracked, now)
            if seen.state is not None and passed and self._may_repeat(tracked, now):
                return self._tracker.dispatch(tracked, now)
        if tracked.request.expired_at(now):
            # It is not published yet, or is to be had after all.
            self._tracker.start_clock(tracked, now)
        return []

    def _on_holder(
        self, tracked: TrackedRequest, holder: str, epoch: int | None, dead: bool, now: float
    ) -> list[Effect]:
        """A request that is looked for is held, by a worker that can be asked or is lost."""
        before = tracked.worker
        tracked.adopt(epoch if epoch is not None else tracked.epoch)
        tracked.opened = True
        effects = self._tracker.started(tracked, holder, now, waits=True)
        if tracked.worker != holder:
            self._tracker.hold(tracked, holder)
        if tracked.id in self.early:
            effects += self.hear_early(tracked, now)
            if not tracked.live:
                return effects
        # It told that it does not hold it, and what it holds no more would be done by now.
        if dead or (tracked.denied and before == holder):
            return effects + self.lose(tracked, now, held=True)
        tracked.denied = False
        return effects + self.questions([tracked], holder)

    def _on_nothing(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """There is no row of an inherited request: none was made, if it was to be in this ledger.

        For the row is made before the request is published, and removed after its end was saved.
        """
        elsewhere = any(used != self._tracker.ledger for used in self._origin(tracked))
        if elsewhere and not self._options.repeats(tracked.invocation.task):
            return self._tracker.settle(tracked, tracked.loss(), now=now)
        return self.send(tracked, now)

    def on_revoked(self, tracked: TrackedRequest, revoked: bool, now: float) -> list[Effect]:
        """What a `Revoke` did; if nothing, the request was claimed, or is not published yet."""
        if not tracked.live or tracked.state == pr.RUNNING:
            return []
        if not revoked:
            return [fx.Inspect(tracked)]
        if tracked.pending_outcome is not None:
            return self._tracker.end_unstarted(tracked, now)
        return (
            self.send(tracked, now)
            if tracked.index is self._inherited
            else self._tracker.time_out(tracked, now)
        )

    def on_reopened(
        self, tracked: TrackedRequest, answer: env.Envelope | None, now: float
    ) -> list[Effect]:
        """What a `Reopen` did: a worker that is granted the new epoch runs it, or it is done."""
        if not tracked.live or tracked.state != pr.RUNNING:
            return []
        if answer is not None:
            return self.on_row(tracked, Seen(ledgers.ROW_DONE, result=answer), now)
        tracked.resends += 1
        return self.send(tracked, now, lost=True)

    def on_concluded(
        self, tracked: TrackedRequest, failure: ft.Failure, now: float
    ) -> list[Effect]:
        """What a `Conclude` did: the worker that had it can change nothing any more."""
        if not tracked.live or tracked.state != pr.RUNNING:
            return []
        return self._give_up_lost(tracked, failure, now)

    # What publishing a message came to.

    def on_unrouted(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """The broker had no queue for a `Dispatch`: no worker will see that message."""
        if tracked.live and tracked.epoch == epoch and tracked.index is self._in_flight:
            tracked.sent_at = None
            self._timers.set(now + PAUSE, REPUBLISH, tracked)
        return []

    def republish(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.index is not self._in_flight or tracked.sent_at is not None:
            return []
        assert tracked.queue is not None
        if self._offers.slots(tracked.queue):
            return self._tracker.dispatch(tracked, now)
        self._timers.set(now + PAUSE, REPUBLISH, tracked)  # `on_lost` routes it anew
        return []

    def on_unconfirmed(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """It is unknown whether the broker has the message of a `Dispatch`."""
        if not tracked.live or tracked.epoch != epoch or tracked.index is not self._in_flight:
            return []
        if self._tracker.ledger is not None:  # one of the messages is granted its row
            return self._tracker.dispatch(tracked, now)
        self.search(tracked, UNSENT, now)
        return self.ask()

    # Workers.

    def on_ids(self, worker: str, ids: Collection[str], now: float) -> list[Effect]:
        """A worker names what it runs for this engine (or has just ended).

        What is missing in two beats is asked for: its last answer may be lost.
        """
        effects: list[Effect] = []
        for tracked in self._tracker.held.get(worker):
            if tracked.id in ids:
                self._absent.pop(tracked.id, None)
                if tracked.pending_outcome == CANCELLED:
                    effects += self._tracker.cancels([tracked], worker)
                continue
            first = self._absent.setdefault(tracked.id, now)
            if now - first >= APART and not tracked.lookups:
                del self._absent[tracked.id]
                effects += self._on_absent(tracked, worker, now)
        if len(self._absent) > 2 * len(self._tracker):
            self._absent.clear()
        return effects

    def _on_absent(self, tracked: TrackedRequest, worker: str, now: float) -> list[Effect]:
        if self._tracker.ledger is not None:
            return self._look_up(tracked, now)
        self.search(tracked, LOST, now)
        self.unasked.remove(tracked)
        return self.questions([tracked], worker)

    def on_lost(self, workers: Iterable[TopicWorker], now: float) -> list[Effect]:
        """Workers that stopped or fell silent.

        What they claimed and did not finish is lost: whether it happened is unknown.  What was not
        claimed is left to the other workers of its queue; without any, it is routed anew.  Where
        there is a ledger it says which is which, so that nothing rests on the order in which news
        arrive; without one, another queue takes another number.
        """
        effects: list[Effect] = []
        rows = self._tracker.ledger is not None
        for worker in workers:
            name = worker.identity if isinstance(worker.identity, str) else None
            held = self._tracker.held.get(name or nameless(worker.queue))
            idle = self._offers.slots(worker.queue) == 0
            self._losses[worker.queue] = now
            if name is not None and worker.goodbye:
                self._goodbyes.append(name)
            for tracked in held:
                tracked.lost = name
                effects += [fx.Inspect(tracked, name)] if rows else self.lose(tracked, now)
            if idle:
                while waiting := self._tracker.backlog.first(worker.queue):
                    effects += self._reroute(waiting, now)
            if idle or rows:
                for tracked in self._in_flight.get(worker.queue, None if idle else FRONT):
                    effects += [fx.Inspect(tracked, name)] if rows else self._reroute(tracked, now)
        return effects

    def _lives(self, holder: str, silence: float | None) -> bool:
        """Whether a worker that was taken for lost lives, as its ledger knows: it was frozen."""
        if silence is None or holder in self._goodbyes:
            return False
        return silence < LIVELY * self._offers.period

    # Sending it again.

    def _reroute(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        # PENDING back to WAITING is no move of the protocol: this is the same wait, begun again.
        tracked.request.current_state = pr.WAITING
        return self._route_from_line(tracked, now)

    def _send_unbegun(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Who had claimed it gave its row back, such as one that was given a forged copy: nobody
        began it under this number, and its row is granted once."""
        tracked.lookups = 0
        tracked.worker = tracked.lost = None
        tracked.denied = tracked.claimed = False
        return self._reroute(tracked, now)

    def _route_from_line(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Its place in the line, if it had one, is another's from now on."""
        queue = tracked.key if tracked.index is self._in_flight else None
        tracked.leave()
        effects = self._tracker.route(tracked, now)
        if queue is not None and self._offers.slots(queue):
            effects += self._tracker.refill(queue, now)
        return effects

    def route_again(self, tracked: TrackedRequest, queue: str, now: float) -> list[Effect]:
        """Without a ledger: a message of it is out, and may still be taken."""
        if queue != tracked.queue and self._tracker.plain:
            self._tracker.wait(tracked, now)  # its worker may answer yet
            return []
        if queue != tracked.queue:
            if tracked.resends >= self._options.max_resends:
                return self._tracker.settle(tracked, tracked.loss(), now=now)
            tracked.resends += 1
            tracked.next_epoch(tracked.next_number)
            tracked.queue = None
            return _incident(tracked, states.RESENT) + self._tracker.route(tracked, now)
        tracked.asked_at = now
        tracked.request.transition(pr.PENDING)
        self._in_flight.put(queue, tracked)
        if tracked.sent_at is not None:
            tracked.maybe_lost = (
                tracked.maybe_lost or self._losses.get(queue, -math.inf) > tracked.sent_at
            )
            tracked.sent_at = now  # those who are there now have not passed it by yet
        self._tracker.start_clock(tracked, now)
        return []

    def _gone(
        self, tracked: TrackedRequest, worker: str | None, now: float, rowless: bool = False
    ) -> list[Effect]:
        effects = self._tracker.started(tracked, None, now)
        return effects + self.lose(tracked, now, worker, rowless, held=not rowless)

    def lose(
        self,
        tracked: TrackedRequest,
        now: float,
        worker: str | None = None,
        rowless: bool = False,
        held: bool = False,
    ) -> list[Effect]:
        """Its worker is gone (`rowless`: and its row is; `held`: its row is there): send it again,
        where that does no harm.
        """
        tracked.worker = worker or tracked.worker
        over = self._tracker.plain or (tracked.expires_at is not None and now >= tracked.expires_at)
        over = over or tracked.resends >= self._options.max_resends
        ends = (
            over
            or tracked.pending_outcome == CANCELLED
            or not self._options.repeats(tracked.invocation.task)
        )
        if ends and not (held and tracked.worker is not None):
            return self._give_up_lost(tracked, tracked.loss(), now)
        if self._tracker.ledger is not None and not rowless:
            if not tracked.lookups:
                self.look_later(tracked, now)  # the ledger may not be there to be asked
            if ends:
                return [fx.Conclude(tracked, tracked.worker or "", tracked.loss())]
            return [fx.Reopen(tracked, tracked.next_number)]
        tracked.resends += 1
        return self.send(tracked, now, lost=True)

    def _give_up_lost(
        self, tracked: TrackedRequest, failure: ft.Failure, now: float
    ) -> list[Effect]:
        """Let it fail; if it was sent to as many workers as it may be, it is put aside, too."""
        effects = _incident(tracked, states.WORKER_LOST, tracked.worker)
        if (
            tracked.resends >= self._options.max_resends
            and tracked.pending_outcome is None
            and not self._tracker.plain
            and self._options.repeats(tracked.invocation.task)
        ):
            effects += self._put_aside(tracked, failure)
        return effects + self._tracker.settle(tracked, failure, now=now)

    def _put_aside(self, tracked: TrackedRequest, failure: ft.Failure) -> list[Effect]:
        try:
            letter = tracked.envelope(
                self._tracker.reply_to, self._options, ours=True, ledger=self._tracker.ledger
            )
        except Exception as error:  # its arguments were changed since it was sent
            LOG.warning("request %s cannot be put aside: %s", tracked.id, error)
            return []
        letter.persistent = True
        letter.headers |= {
            env.WBE_DEAD: failure.exception_str[:_LONGEST_REASON],
            env.WBE_QUEUE: tracked.queue or "",
            env.WBE_TIME: self._tracker.wall(),
        }
        return [fx.PutAside(letter)]

    def send(self, tracked: TrackedRequest, now: float, lost: bool = False) -> list[Effect]:
        """No worker runs it, or may end it, and none will under the numbers used so far.

        `lost`: a worker had it that is lost.
        """
        if tracked.pending_outcome is not None:
            return self._tracker.end_unstarted(tracked, now)
        if tracked.expires_at is not None and now >= tracked.expires_at:
            tracked.pending_outcome = EXPIRED
            return self._tracker.end_unstarted(tracked, now)
        left = tracked.index is self._inherited
        effects: list[Effect] = []
        if lost:
            effects += _incident(tracked, states.WORKER_LOST, tracked.worker)
        if lost or not left:
            effects += _incident(tracked, states.RESENT, tracked.worker)
        tracked.worker = tracked.lost = tracked.queue = None
        tracked.denied = False
        tracked.next_epoch(tracked.next_number)
        if left and tracked.expires_at is not None:
            self._timers.set(tracked.expires_at, EXPIRY, tracked)
        if left and self._tracker.ledger is None:
            tracked.lowest_epoch = 0  # the end of any run of this attempt is its end
        tracked.request.current_state = pr.WAITING  # as when it is routed anew
        return effects + self._route_from_line(tracked, now)

    def disown(self, flow: str | None = None) -> None:
        """Forget everything (of one flow): another engine goes on with it.  Nothing is settled,
        and nothing that others see is touched.
        """
        for tracked in list(self._tracker.all_of(flow)):
            self._tracker.forget(tracked)
        if flow is None:
            self.early.clear()
            self._origins.clear()
        else:
            self._origins.pop(flow, None)


def _incident(tracked: TrackedRequest, event: str, worker: str | None = None) -> list[Effect]:
    """What happened to a request, for whoever keeps that."""
    if hasattr(tracked.invocation.events, "incident"):
        return [fx.Incident(tracked, event, worker)]
    return []
