"""Requests whose worker, or whose engine, went away: what became of them is to be found out."""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from wbengine import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import ending
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.entries import Entry
from wbengine.engines.worker_based.requests.parts import MOST_PATIENCE, PATIENCE
from wbengine.engines.worker_based.requests.reasons import (
    EXPIRE,
)
from wbengine.types import failure as ft

__all__ = ["MOST_EARLY", "MOST_PATIENCE", "PATIENCE", "UNKNOWN", "Recovering", "Seen"]

#: The state of a row whose ledger could not be asked.
UNKNOWN: Final = "UNKNOWN"

#: So many answers at most wait for their requests to be taken up.
MOST_EARLY: Final = 10_000


class Seen(NamedTuple):
    """A row of the ledger, as far as a book needs it.

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


class Recovering(ending.Ending):
    """A book's dealings with what may be under way although nobody here has heard of it lately.

    A request that an earlier run of its flow may have sent is *left*: nothing is published until it
    is known that nobody runs it, and nobody will.  With a ledger its row tells; without one the
    workers are asked, who can tell what they run, but not what waits in a queue of the broker.

    It is *doubtful* (`Entry.doubts`) as long as nobody has promised to answer here: whoever holds
    it is asked to, again and again, and each time the row is looked at before.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The ledgers that earlier runs of flows may have used, by the flow's uuid.
        self._origins: dict[str, Collection[str | None]] = {}
        #: Whether answers may come to requests of an earlier run, before these are taken up.
        self.heir = False
        self._early: OrderedDict[str, tuple[env.Envelope, Any]] = OrderedDict()
        #: What came and was dropped, by reason: unknown, late, duplicate, reordered, old_epoch,
        #: unexpected, unreadable.
        self.ignored: Counter[str] = Counter()

    # What earlier runs left.

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
        """Be called by the name of a book that is gone: there may be answers to its requests."""
        self._reply_to = reply_to
        self.heir = True

    def recover(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Take on a request that an earlier run may have sent already.

        Without a ledger, `ask` has to be called after the last of a turn.

        :raises Duplicate: as `submit`.
        """
        entry = self._admit(call, done, now)
        if self._closed is not None:
            return self._leave_undone(entry, self._closed)
        if not self._origin(entry):
            return self._keep_times(entry, now) or self._route(entry, now)
        with contextlib.suppress(TypeError, ValueError):  # an earlier run would have failed of it
            self._read_times(entry, now)
        if self.plain:  # nobody can be asked, and nobody will answer here
            if self._terms.repeats(call.task):
                return self._route(entry, now)
            return self._settle(entry, entry.unknown(), now=now)
        entry.dispatched = True
        self._left.put(entry.task_cls, entry)
        self._doubt(entry, now)
        if self.ledger is not None:
            return [fx.Inspect(entry)]
        entry.floor = 0  # whichever run of this attempt it was, its end is one
        if entry.id in self._early:
            return self._hear_early(entry, now)
        self.unasked.append(entry)
        return []

    def _origin(self, entry: Entry) -> Collection[str | None]:
        return self._origins.get(entry.invocation.flow_uuid, (self.ledger,))

    def _look(self, entry: Entry, now: float) -> list[Effect]:
        """Time passed, and nobody has promised to answer."""
        if not entry.doubts:
            return []
        if self.ledger is not None:
            self._doubt(entry, now)
            return [fx.Inspect(entry)]
        if entry.shelf is not self._left:
            return self._search_on(entry, now)
        if entry.fate is not None or self._terms.repeats(entry.invocation.task):
            return self._send(entry, now)
        self._doubt(entry, now)
        if entry.state == pr.WAITING:
            # It may wait in a queue of the broker, for as long as any request may.
            entry.request.transition(pr.PENDING)
            self._start_last_clock(entry, now)
        self.unasked.append(entry)
        return []

    def _start_last_clock(self, entry: Entry, now: float) -> None:
        # Also where requests wait for ever: nothing says that this one still waits anywhere.
        timeout = self._timeout if self._timeout is not None else float(pr.REQUEST_TIMEOUT)
        entry.request.timeout, entry.request.since = timeout, now
        self._alarms.set(now + timeout, EXPIRE, entry)

    def _give_up(self, entry: Entry, now: float) -> list[Effect]:
        """A left request's time is over: without a ledger nobody can tell what became of it."""
        queue = self._offers.queue_for(entry.task_cls, self._load)
        if queue is not None and self._offers.slots(queue) and not self._offers.free(queue):
            self._start_last_clock(entry, now)  # a busy fleet may not have come to it
            return []
        return self._lose(entry, now)

    # Answers.

    def _hear_early(self, entry: Entry, now: float) -> list[Effect]:
        answer, receipt = self._early.pop(entry.id)
        if self.ledger is None:  # whichever run of this attempt it was, its end is one
            entry.adopt(answer.number(env.WBE_EPOCH, entry.epoch))
        return self.on_response(answer, receipt, now)

    def _keep_early(self, answer: env.Envelope, receipt: Any) -> list[Effect]:
        """An answer to a request that may yet be taken up; what nobody asks for stays unread."""
        if answer.correlation_id in self._early:
            return [fx.Acknowledge(receipt)]
        self._early[answer.correlation_id or ""] = answer, receipt
        if len(self._early) > MOST_EARLY:
            return [fx.Acknowledge(self._early.popitem(last=False)[1][1])]
        return []

    def _on_told(self, entry: Entry, answer: env.Envelope, now: float) -> list[Effect]:
        """A worker says where a request is: it runs it and answers here, or it does not run it.

        Number 0 is told unasked, by whoever was given a request that somebody else holds, or that
        he answers to another address.
        """
        number, worker = answer.number(env.WBE_ASK), answer.text(env.WBE_WORKER)
        if answer.body["state"] == pr.RUNNING:
            if number == entry.number and entry.speaks_of(answer):
                entry.doubts = 0
            return []
        if number and number != entry.number:
            return []
        if self.ledger is None:
            return self._on_denied(entry, worker, now) if number else []
        if number:
            entry.denied = worker == entry.worker
            return [fx.Inspect(entry)] if entry.doubts and entry.denied else []
        if entry.state == pr.RUNNING or entry.doubts:
            return []
        self._doubt(entry, now)
        return [fx.Inspect(entry)]

    # Rows.

    def on_row(self, entry: Entry, seen: Seen, now: float, lost: str | None = None) -> list[Effect]:
        """What an `Inspect` found; `lost` is the `Inspect`'s."""
        if not entry.live:
            return []
        state, holder = seen.state, seen.holder
        if state == ledgers.ROW_DONE:
            if seen.result is None:  # nobody can read what it came to
                return self._settle(entry, entry.unknown(), now=now)
            if entry.doubts:
                entry.adopt(seen.result.number(env.WBE_EPOCH, entry.epoch))
            _, receipt = self._early.pop(entry.id, (None, None))
            return self.on_response(seen.result, receipt, now)
        if state == ledgers.ROW_CLAIMED and holder is not None:
            gone = holder in (lost, entry.lost) and not self._lives(holder, seen.silence)
            if entry.doubts:
                return self._on_holder(entry, holder, seen.epoch, seen.silent or gone, now)
            if gone and holder == lost:
                return self._gone(entry, holder, now)
            effects = self._started(entry, holder, now)
            if entry.worker != holder or seen.silence:
                self._hold(entry, holder, seen.silence or 0.0)
            return effects
        if state == UNKNOWN:
            self._look_later(entry, now, lost)
            return []
        if entry.shelf is self._left:
            if state == ledgers.ROW_OPEN:
                later = seen.epoch is not None and seen.epoch > entry.number
                return [] if later else [fx.Revoke(entry)]  # later: another owner's by now
            return self._on_nothing(entry, now)
        if entry.state == pr.RUNNING:
            # It was claimed, and is not any more: only who lost it could tell.
            if not (entry.doubts or entry.worker == lost):
                return []
            return self._lose(entry, now, rowless=state is None)
        entry.doubts = 0
        return self._on_unclaimed(entry, seen, now, lost)

    def _look_later(self, entry: Entry, now: float, lost: str | None) -> None:
        """The ledger cannot be asked: whatever the reason to look was, it is looked at again."""
        if entry.doubts:
            return  # it is anyway
        if entry.state == pr.RUNNING or entry.fate is not None or lost is not None:
            self._doubt(entry, now)
        elif entry.request.expired_at(now):
            self._start_clock(entry, now)

    def _on_unclaimed(self, entry: Entry, seen: Seen, now: float, lost: str | None) -> list[Effect]:
        """Nobody has it: its row is OPEN, or not made yet, or vanished."""
        if seen.state is None and entry.opened:
            return self._gone(entry, lost, now, rowless=True)  # nobody can tell who took it
        if entry.fate is not None:
            ours = seen.epoch is None or seen.epoch <= entry.number
            if seen.state is None:
                return self._fulfil(entry, now)
            return [fx.Revoke(entry)] if ours else []
        if entry.shelf is self._sent and entry.queue is not None:
            if self._offers.slots(entry.queue) == 0:
                return self._reroute(entry, now)
            if seen.state is not None and (self._idle(entry) or self._is_passed(entry, now)):
                return self._publish_again(entry, now)
        if entry.request.expired_at(now):
            self._start_clock(entry, now)  # it is not published yet, or is to be had after all
        return []

    def _on_holder(
        self, entry: Entry, holder: str, epoch: int | None, dead: bool, now: float
    ) -> list[Effect]:
        """A doubtful request is held: by whoever lives to be asked, or lost."""
        before = entry.worker
        entry.adopt(epoch if epoch is not None else entry.epoch)
        entry.opened = True
        effects = self._started(entry, holder, now)
        if entry.worker != holder:
            self._hold(entry, holder)
        if entry.id in self._early:
            effects += self._hear_early(entry, now)
            if not entry.live:
                return effects
        # He told that he does not hold it, and what he holds no more would be done by now.
        if dead or (entry.denied and before == holder):
            return effects + self._lose(entry, now, held=True)
        entry.denied = False
        return effects + self._questions([entry], holder)

    def _on_nothing(self, entry: Entry, now: float) -> list[Effect]:
        """There is no row of a left request: none was made, if it was to be in this ledger.

        For the row is made before the request is published, and removed after its end was saved.
        """
        elsewhere = any(used != self.ledger for used in self._origin(entry))
        if elsewhere and not self._terms.repeats(entry.invocation.task):
            return self._settle(entry, entry.unknown(), now=now)
        return self._send(entry, now)

    def on_revoked(self, entry: Entry, revoked: bool, now: float) -> list[Effect]:
        """What a `Revoke` did: without it, either somebody has claimed the request, or it has not
        been published yet."""
        if not entry.live or entry.state == pr.RUNNING:
            return []
        if not revoked:
            return [fx.Inspect(entry)]
        if entry.fate is not None:
            return self._fulfil(entry, now)
        return self._send(entry, now) if entry.shelf is self._left else self._time_out(entry, now)

    def on_reopened(self, entry: Entry, answer: env.Envelope | None, now: float) -> list[Effect]:
        """What a `Reopen` did: nobody but who is granted the new epoch runs it; or it is done."""
        if not entry.live or entry.state != pr.RUNNING:
            return []
        if answer is not None:
            return self.on_row(entry, Seen(ledgers.ROW_DONE, result=answer), now)
        entry.resends += 1
        return self._send(entry, now)

    def on_concluded(self, entry: Entry, failure: ft.Failure, now: float) -> list[Effect]:
        """What a `Conclude` did: whoever had it can change nothing any more."""
        if not entry.live or entry.state != pr.RUNNING:
            return []
        return self._settle(entry, failure, now=now)

    # The end.

    def disown(self, flow: str | None = None) -> None:
        """Forget everything (of one flow): somebody else goes on with it.  Nothing is settled,
        and nothing that others see is touched.
        """
        for entry in list(self._all(flow)):
            self.forget(entry)
        if flow is None:
            self._early.clear()
            self._origins.clear()
        else:
            self._origins.pop(flow, None)
