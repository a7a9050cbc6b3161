"""Requests whose worker, or whose engine, went away: what became of them is to be found out."""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from wbengine import invocation
from wbengine.engines.worker_based import asking
from wbengine.engines.worker_based import effects as fx
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.effects import Effect
from wbengine.engines.worker_based.entries import EXPIRE, LOOK, Alarms, Backlog, Entry, Line, Shelf
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.offers import Offers
from wbengine.engines.worker_based.types import TopicWorker

#: The state of a row whose ledger could not be asked.
UNKNOWN: Final = "UNKNOWN"

#: Seconds until whoever was asked for a request is asked again; each time it takes twice as long,
#: and in the end so long.  Without a ledger, after the first of them whatever may be run twice is.
PATIENCE: Final = 3.0
MOST_PATIENCE: Final = 60.0

#: So many answers at most wait for their requests to be taken up.
MOST_EARLY: Final = 10_000


class Seen(NamedTuple):
    """A row of the ledger, as far as a book needs it.

    `state` is None when there is none, and `UNKNOWN` when the ledger could not be asked.  `result`
    is the answer of one that is DONE (None: nobody can read it).  `silent`: the holder's last beat
    is too long ago.
    """

    state: str | None
    holder: str | None = None
    result: env.Envelope | None = None
    epoch: int | None = None
    silent: bool = False


class Recovering(abc.ABC):
    """A book's dealings with what may be under way although nobody here has heard of it lately.

    A request that an earlier run of its flow may have sent is *left*: nothing is published until it
    is known that nobody runs it, and nobody will.  With a ledger its row tells; without one the
    workers are asked, who can tell what they run, but not what waits in a queue of the broker.

    It is *doubtful* (`Entry.doubts`) as long as nobody has promised to answer here: whoever holds
    it is asked to, again and again, and each time the row is looked at before.
    """

    ledger: str | None
    _reply_to: str
    _offers: Offers
    _timeout: float | None
    _closed: str | None
    _backlog: Backlog
    _sent: Line
    _held: Shelf
    _alarms: Alarms

    def __init__(self) -> None:
        #: What an earlier run left, until it is known where it is.
        self._left = Shelf()
        # The ledgers that earlier runs of flows may have used, by the flow's uuid.
        self._origins: dict[str, Collection[str | None]] = {}
        #: What the workers are still to be asked for, without a ledger: see `ask`.
        self.unasked: list[Entry] = []
        #: Whether answers may come to requests of an earlier run, before these are taken up.
        self.heir = False
        self._early: OrderedDict[str, tuple[env.Envelope, Any]] = OrderedDict()

    # What the book does.

    @abc.abstractmethod
    def on_response(self, answer: env.Envelope, receipt: Any, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _admit(self, call: invocation.Invocation, done: invocation.Done, now: float) -> Entry: ...

    @abc.abstractmethod
    def _route(self, entry: Entry, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _load(self, queue: str) -> int: ...

    @abc.abstractmethod
    def _start_clock(self, entry: Entry, now: float) -> None: ...

    @abc.abstractmethod
    def _started(self, entry: Entry, worker: str | None, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _hold(self, entry: Entry, worker: str) -> None: ...

    @abc.abstractmethod
    def _settle(self, entry: Entry, value: Any, *, now: float) -> list[Effect]: ...

    @abc.abstractmethod
    def _leave_undone(self, entry: Entry, reason: str) -> list[Effect]: ...

    @abc.abstractmethod
    def _time_out(self, entry: Entry, now: float) -> list[Effect]: ...

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
            return self._route(entry, now)
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

    def ask(self) -> list[Effect]:
        """Ask all workers for what was taken on since the last time, in few messages."""
        entries, self.unasked = self.unasked, []
        return self._questions([entry for entry in entries if entry.live], env.ALL_WORKERS)

    def _questions(self, entries: Iterable[Entry], to: str) -> list[Effect]:
        asked = [(entry.id, entry.invocation.epoch) for entry in entries]
        return [fx.Ask(question) for question in asking.questions(asked, to, self._reply_to)]

    def _doubt(self, entry: Entry, now: float) -> None:
        pause = min(MOST_PATIENCE, PATIENCE * 2 ** min(entry.doubts, 10))
        entry.doubts += 1
        self._alarms.set(now + pause, LOOK, entry)

    def _look(self, entry: Entry, now: float) -> list[Effect]:
        """Time passed, and nobody has promised to answer."""
        if not entry.doubts:
            return []
        self._doubt(entry, now)
        if self.ledger is not None:
            return [fx.Inspect(entry)]
        if entry.shelf is self._left:
            if entry.invocation.task.idempotent is True:
                return self._send(entry, now)
            if entry.state == pr.WAITING:
                # It may wait in a queue of the broker, for as long as any request may.
                entry.request.transition(pr.PENDING)
                self._start_last_clock(entry, now)
        return self._questions([entry], env.ALL_WORKERS)

    def _send(self, entry: Entry, now: float) -> list[Effect]:
        """Nobody runs it, and nobody will under the numbers used so far."""
        entry.doubts = 0
        entry.worker = None
        entry.next_epoch(max(entry.epoch, entry.invocation.epoch))
        if self.ledger is None:
            entry.floor = 0
        entry.request.current_state = pr.WAITING  # as when it is routed anew
        entry.leave()
        return self._route(entry, now)

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
        number = answer.number(env.WBE_ASK)
        if answer.body["state"] == pr.RUNNING:
            if number == entry.invocation.epoch:
                entry.doubts = 0
            return []
        if self.ledger is None or (number and number != entry.invocation.epoch):
            return []
        if number:
            entry.denied = answer.text(env.WBE_WORKER) == entry.worker
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
            if seen.result is None:
                return self._lose(entry, now)  # nobody can read what it came to
            if entry.doubts:
                entry.adopt(seen.result.number(env.WBE_EPOCH, entry.epoch))
            _, receipt = self._early.pop(entry.id, (None, None))
            return self.on_response(seen.result, receipt, now)
        if state == ledgers.ROW_CLAIMED and holder is not None:
            if entry.doubts:
                dead = seen.silent or holder == lost
                return self._on_holder(entry, holder, seen.epoch, dead, now)
            if holder == lost:
                return self._gone(entry, holder, now)
            effects = self._started(entry, holder, now)
            if entry.worker != holder:
                self._hold(entry, holder)
            return effects
        if state == UNKNOWN and entry.doubts:
            return []  # it is looked at again
        if entry.shelf is self._left:
            if state == ledgers.ROW_OPEN:
                return [fx.Revoke(entry)]
            return self._on_nothing(entry, now)
        if entry.state == pr.RUNNING:
            return self._lose(entry, now) if entry.doubts or entry.worker == lost else []
        entry.doubts = 0
        if state is None and entry.opened:
            return self._gone(entry, lost, now)  # nobody can tell any more who took it
        if lost is None or entry.queue is None:
            self._start_clock(entry, now)  # it is not published yet, or is to be had after all
        elif entry.shelf is self._sent and self._offers.slots(entry.queue) == 0:
            return self._reroute(entry, now)
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
            if entry.invocation.task.idempotent is True and entry.invocation.epoch > entry.epoch:
                return [*effects, fx.Reopen(entry, entry.invocation.epoch)]
            return effects + self._lose(entry, now)
        entry.denied = False
        return effects + self._questions([entry], holder)

    def _on_nothing(self, entry: Entry, now: float) -> list[Effect]:
        """There is no row of a left request: none was made, if it was to be in this ledger.

        For the row is made before the request is published, and removed after its end was saved.
        """
        if any(used != self.ledger for used in self._origin(entry)):
            return self._lose(entry, now)
        return self._send(entry, now)

    def on_revoked(self, entry: Entry, revoked: bool, now: float) -> list[Effect]:
        """What a `Revoke` did: without it, either somebody has claimed the request, or it has not
        been published yet."""
        if not entry.live or entry.state == pr.RUNNING:
            return []
        if not revoked:
            return [fx.Inspect(entry)]
        return self._send(entry, now) if entry.shelf is self._left else self._time_out(entry, now)

    def on_reopened(self, entry: Entry, answer: env.Envelope | None, now: float) -> list[Effect]:
        """What a `Reopen` did: nobody but who is granted the new epoch runs it; or it is done."""
        if not entry.live:
            return []
        if answer is not None:
            return self.on_row(entry, Seen(ledgers.ROW_DONE, result=answer), now)
        return self._send(entry, now)

    # Workers.

    def on_lost(self, workers: Iterable[TopicWorker], now: float) -> list[Effect]:
        """Workers that stopped or fell silent.

        What they claimed and did not finish fails as `WorkerLost`: whether it happened is unknown.
        What nobody claimed is left to the other workers of its queue; without any, it is routed
        anew.  Where there is a ledger it says which is which, so that nothing rests on the order in
        which news arrive; without one, a new route takes a new epoch.
        """
        effects: list[Effect] = []
        for worker in workers:
            name = worker.identity if isinstance(worker.identity, str) else None
            idle = self._offers.slots(worker.queue) == 0
            if name is not None:
                effects += self._look_or(self._lose, self._held.get(name), name, now)
            if idle:
                while entry := self._backlog.first(worker.queue):
                    entry.leave()
                    effects += self._reroute(entry, now)
            if idle or self.ledger is not None:
                effects += self._look_or(self._reroute, self._sent.get(worker.queue), name, now)
        return effects

    def _look_or(
        self, otherwise: Any, entries: list[Entry], lost: str | None, now: float
    ) -> list[Effect]:
        if self.ledger is not None:
            return [fx.Inspect(entry, lost) for entry in entries]
        return [effect for entry in entries for effect in otherwise(entry, now)]

    def _reroute(self, entry: Entry, now: float) -> list[Effect]:
        # PENDING back to WAITING is no move of the protocol: this is the same wait, begun again.
        entry.request.current_state = pr.WAITING
        if entry.dispatched and self.ledger is None:
            entry.next_epoch(entry.epoch + 1)  # a message of it may still be taken by somebody
        entry.leave()
        return self._route(entry, now)

    def _gone(self, entry: Entry, worker: str | None, now: float) -> list[Effect]:
        effects = self._started(entry, None, now)
        entry.worker = worker
        return effects + self._lose(entry, now)

    def _lose(self, entry: Entry, now: float) -> list[Effect]:
        return self._settle(entry, entry.lost(), now=now)

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

    @abc.abstractmethod
    def _all(self, flow: str | None) -> Iterator[Entry]: ...

    @abc.abstractmethod
    def forget(self, entry: Entry) -> None: ...
