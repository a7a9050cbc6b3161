"""Scripts of events for a request tracker, with the effects that each event must have."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, Final

from tests.unit.trackers import T0, Bench, Job
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._discovery import snapshots
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import recovery as rc
from wbengine.engines.worker_based._requests.recovery import UNKNOWN, RowSnapshot
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.running import LOCAL
from wbengine.types.failure import Failure

#: First epoch of a run that resumes a flow.
FENCE: Final = 2048


class Again(Job):
    idempotent = True


class Never(Job):
    idempotent = False


Effects = list[Any]
KINDS: Final = {"Job": Job, "Again": Again, "Never": Never}


class Sink:
    """Receives the incidents of a request, and its start."""

    def __call__(self, event: str, details: dict[str, Any]) -> None: ...

    def incident(self, event: str, worker: str | None) -> None: ...

    def began(self, worker: str) -> None: ...

    def taken(self, worker: str) -> None: ...


def read(word: str) -> Any:
    """Return the value of a word: a literal or a text."""
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def split(words: Iterable[str]) -> tuple[list[Any], dict[str, Any]]:
    options = dict(word.split("=") for word in words if "=" in word)
    values = [read(word) for word in words if "=" not in word]
    return values, {name: read(value) for name, value in options.items()}


class Script:
    """A tracker that processes scripts, and publishes each request immediately.

    A script consists of steps that are separated by ";". A step is `@TIME METHOD WORD... > RESULT`.
    The method is one of this class, and the result is that of the method, or the list of effects,
    none by default. After "~", the result must contain a text. A time is kept until the next one.
    Requests have one-letter labels, and the label with its epoch is `a1`. Their queue is `q`.
    """

    def __init__(self, options: str = "") -> None:
        bench = Bench(**{"workers": False} | (read_options := split(options.split())[1]))
        self.fleet, self.tracker, self.now = bench.fleet, bench.tracker, T0
        if read_options.get("workers", True):
            self.queue("q", 1, 1)
        self.entries: dict[str, TrackedRequest] = {}
        self.outcomes: dict[str, invocation.Outcome] = {}
        #: Failures with which the tracker concludes rows.
        self.losses: dict[str, Failure] = {}
        self.is_publishing = True

    def play(self, script: str) -> Script:
        for step in script.split(";"):
            event, sign, expected = step.partition("~" if "~" in step else ">")
            name, *words = event.split()
            if name[0] == "@":
                self.now, (name, *words) = T0 + float(name[1:]), words
            values, options = split(words)
            result = getattr(self, name)(*values, **options)
            shown = result if isinstance(result, str) else self.shown(result or ())
            expected = " ".join(expected.split())
            matches = expected in shown if sign == "~" else expected == shown
            assert matches, f"{event.strip()} > {shown}, expected {expected}"
            self.check()
        return self

    def check(self) -> None:
        """Check that each request is in exactly one place, or is searched for."""
        for label, entry in self.entries.items():
            is_indexed = entry.index is not None
            assert is_indexed == entry.live or (entry.live and entry.lookups), label
            assert (label in self.outcomes) == (entry.state in pr.STOP_STATES)

    # Effects.

    def label(self, id: str | None) -> str:
        return next(label for label, entry in self.entries.items() if entry.id == id)

    def shown(self, effects: Iterable[Any]) -> str:
        return ", ".join([self._shown(effect) for effect in effects])

    def _shown(self, effect: Any) -> str:
        label = self.label(effect.tracked.id) if hasattr(effect, "tracked") else ""
        match effect:
            case fx.Dispatch(_, epoch, envelope):
                assert envelope.headers.get(hd.WBE_EPOCH, epoch) == epoch
                if self.is_publishing:
                    self.publish(label)
                return f"send {label}{epoch}" + f" {envelope.routing_key}".removesuffix(" q")
            case fx.Settle(_, outcome):
                assert label not in self.outcomes
                self.outcomes[label] = outcome
                by = "" if outcome.worker == LOCAL else f" by {outcome.worker}"
                return f"end {label} {self.value(label)}{by}"
            case fx.ForwardEvent(_, event, details):
                return f"event {label} {event} {details['n']}"
            case fx.Record(_, "began", (worker,)):
                return f"started {label} {worker}"
            case fx.Record(_, "taken", (worker,)):
                return f"claimed {label} {worker}"
            case fx.Record(_, "incident", (event, worker)):
                return f"{event} {label} {worker}"
            case fx.Acknowledge(receipt):
                return "ack" if receipt == "receipt" else f"ack {receipt}"
            case fx.Revoke():
                return f"revoke {label}"
            case fx.Inspect(_, lost):
                return f"read {label}" + (f" lost={lost}" if lost else "")
            case fx.Reopen(_, epoch):
                return f"reopen {label}{epoch}"
            case fx.Conclude(_, holder, failure):
                assert failure.check(exc.WorkerLost) and effect.tracked.live
                self.losses[label] = failure
                return f"conclude {label} {holder}"
            case fx.MoveToDeadLetters(letter):
                return f"dead {self.label(letter.correlation_id)}"
            case fx.Drop(id):
                return f"drop {self.label(id)}"
            case fx.Ask(message):
                named = message.body["asked"]
            case fx.Cancel(message):
                worker_commands.SCHEMAS[worker_commands.CANCEL].check(message.body)
                assert hd.WBE_VERSION in message.headers
                named = worker_commands.Cancellation.from_message(message).requests
        to = "all" if message.routing_key == env.ALL_WORKERS else message.routing_key
        if message.persistent:
            to = f"{to}/{message.priority}"
        requests = " ".join(f"{self.label(id)}{number}" for id, number in named)
        return f"{type(effect).__name__.lower()} {to} {requests}"

    # Workers and queues.

    def queue(self, name: str, slots: int, free: int) -> None:
        """Change the slots of a queue. A new queue offers all kinds of tasks."""
        classes = [f"{kind.__module__}.{kind.__name__}" for kind in KINDS.values()]
        self.fleet.set(name, slots, free, *([] if name in self.fleet.all_slots else classes))

    def unserve(self, name: str = "q") -> None:
        self.fleet.end(name)

    def rest(self, name: str = "q", rests: bool = True) -> None:
        """Let the workers of a queue drain, or resume them."""
        (self.fleet.resting.add if rests else self.fleet.resting.discard)(name)

    def taskflow(self) -> None:
        self.fleet.plain.add("q")

    def reports(self, count: int, free: int = 0, name: str = "q") -> None:
        """Set how often each worker of a queue has reported, and has reported a free slot."""
        self.fleet.spoke[name], self.fleet.idle[name] = count, free

    def outage(self, start: float, end: float) -> None:
        self.fleet.gone = T0 + start, T0 + end

    def missed(self, seconds: float) -> None:
        self.fleet.outage = seconds

    def period(self, seconds: float) -> None:
        self.fleet.period = seconds

    def capacity(self, count: int, name: str = "q", others: int = 9) -> None:
        """Limit the number of requests in a queue of the broker."""
        self.tracker._capacity = lambda queue: (  # type: ignore[method-assign]
            count if queue == name else others
        )

    def gained(self, kind: str = "Job") -> Effects:
        name = f"{KINDS[kind].__module__}.{kind}"
        return self.tracker.on_workers_gained([name], self.now)

    def lost(self, name: str | None, queue: str = "q", announced: bool = False) -> Effects:
        worker = types.TopicWorker("t", ()) if name is None else types.TopicWorker("t", (), name)
        worker.queue, worker.announced_end = queue, announced
        return self.tracker.on_workers_lost([worker], self.now)

    def beat(self, worker: str, *labels: str) -> Effects:
        ids = {self.entries[label].id for label in labels}
        return self.tracker.on_heartbeat(worker, ids, self.now)

    def watched(self) -> str:
        """Return the workers that the finder was asked to watch, and their silence."""
        watched, self.fleet.watched = self.fleet.watched, []
        return " ".join(f"{name}:{silence:g}" for name, silence in watched)

    # Requests.

    def request(
        self, *labels: str, kind: str = "Job", sink: bool = False, cancelled: bool = False,
        eta: Any = None, expires: Any = None, **options: Any,
    ) -> Effects:  # fmt: skip
        """Submit requests. `sink`: their events are received."""
        effects: Effects = []
        for label in labels:
            call = invocation.Invocation(
                KINDS[kind](label), uuid=label, events=Sink() if sink else None,
                **{"action": "execute"} | options,
            )  # fmt: skip
            call.task.eta, call.task.expires = eta, expires
            if cancelled:
                call.cancellation.cancel()
            effects += self.tracker.submit(call, lambda *_: None, self.now)
            self.entries[label] = call.ticket
        return effects

    def left(self, *labels: str, **options: Any) -> Effects:
        """Submit requests that an earlier run of the flow may have sent."""
        return self.request(*labels, **dict(options, recovered=True, epoch=FENCE, flow_uuid="flow"))

    def pending(self, *labels: str, **options: Any) -> None:
        shown = self.shown(self.request(*labels, **options))
        assert shown == ", ".join(f"send {label}1" for label in labels)

    def running(self, *labels: str, worker: str = "w1", **options: Any) -> None:
        self.pending(*labels, **options)
        for label in labels:
            self.reply(label, pr.RUNNING, worker)

    def publish(self, label: str) -> None:
        entry = self.entries[label]
        entry.opened, entry.sent_at = True, self.now
        entry.publish_count += 1

    def separate(self) -> None:
        """Use a ledger outside the broker."""
        self.tracker.separate_ledger = True

    def publishing(self, is_publishing: bool) -> None:
        self.is_publishing = is_publishing

    def unrouted(self, label: str, epoch: int) -> Effects:
        return self.tracker.on_unrouted(self.entries[label], epoch, self.now)

    def unconfirmed(self, label: str, epoch: int) -> Effects:
        return self.tracker.on_unconfirmed(self.entries[label], epoch, self.now)

    def unsent(self, label: str) -> Effects:
        return self.tracker.on_unsent(self.entries[label], exc.LedgerFailure("full"), self.now)

    def save(self, *labels: str) -> Effects:
        return self.tracker.on_saved([self.entries[label].invocation for label in labels])

    def cancel(self, *labels: str) -> Effects:
        calls = [self.entries[label].invocation for label in labels]
        return self.tracker.cancel(calls, self.now)

    def forget(self, label: str) -> None:
        self.tracker.forget(self.entries[label])

    # Replies.

    def reply(
        self, label: str, state: str, worker: str | None, value: Any = None,
        receipt: str = "receipt", **fields: Any,
    ) -> Effects:  # fmt: skip
        """Process a reply, of a worker of TaskFlow if `worker` is None."""
        entry = self.entries[label]
        data: dict[str, Any] = {}
        if state == pr.EVENT:
            details = value if isinstance(value, dict) else {"n": value}
            data = {"event_type": "e", "details": details}
        elif state == pr.FAILURE:
            data = {"result": Failure.from_exception(RuntimeError("no")).to_dict()}
        elif state == pr.SUCCESS:
            data = {"result": value}
        if worker is not None:
            fields = {"worker": worker, "epoch": entry.epoch, "seq": 1} | fields
        else:
            fields["extended"] = False
        return self.tracker.on_reply(Reply(entry.id, state, data, **fields), receipt, self.now)

    def has(self, label: str, worker: str, **fields: Any) -> Effects:
        """Process the reply to an ask: the worker has the request."""
        fields = {"ask_number": self.entries[label].number, "epoch": None, "seq": 2} | fields
        return self.reply(label, pr.RUNNING, worker, **fields)

    def lacks(self, label: str, worker: str, **fields: Any) -> Effects:
        fields = {"ask_number": self.entries[label].number, "epoch": None, "seq": 2} | fields
        return self.reply(label, pr.PENDING, worker, **fields)

    def redelivered(self, label: str, worker: str, **fields: Any) -> Effects:
        """Report that a second worker received the request, without a ledger."""
        return self.reply(label, pr.FAILURE, worker, is_lost=True, **fields)

    # Rows.

    def row(
        self, label: str, state: str | None, holder: str | None = None, *, lost: str | None = None,
        result: Any = None, epoch: int | None = 0, **fields: Any,
    ) -> Effects:  # fmt: skip
        """Read the row of a request, by default with its epoch, or the first one if it was left."""
        entry = self.entries[label]
        if epoch == 0:
            epoch = 1 if entry.invocation.recovered else entry.epoch
        state = state if state in (None, UNKNOWN) else state.lower()
        reply = None if result is None else self._stored(label, result, epoch)
        seen = RowSnapshot(state, holder, reply, epoch, **fields)
        return self.tracker.on_event(rc.RowRead(entry, seen, lost), self.now)

    def _stored(self, label: str, result: Any, epoch: int | None) -> Reply:
        data = {"result": result}
        return Reply(self.entries[label].id, pr.SUCCESS, data, worker="w1", epoch=epoch)

    def revoked(self, label: str, done: bool = True) -> Effects:
        return self.tracker.on_event(rc.RowRevoked(self.entries[label], done), self.now)

    def reopened(self, label: str, result: Any = None, *, epoch: int | None = None) -> Effects:
        """Report that a row was reopened, by default with the next epoch of the request."""
        entry = self.entries[label]
        reply = None if result is None else self._stored(label, result, 1)
        event = rc.RowReopened(entry, epoch or entry.next_number, reply)
        return self.tracker.on_event(event, self.now)

    def concluded(self, label: str) -> Effects:
        event = rc.RowConcluded(self.entries[label], self.losses[label])
        return self.tracker.on_event(event, self.now)

    # Time, runs and state.

    def round(self) -> Effects:
        return self.tracker.on_round(self.now)

    def timer(self) -> Effects:
        return self.tracker.on_timer(self.now)

    def next(self) -> str:
        """Return the time of the next timer."""
        due = self.tracker.next_timer()
        return "never" if due is None else f"{due - T0:g}"

    def ask(self) -> Effects:
        return self.tracker.ask()

    def expect(self, reason: str | None) -> None:
        self.tracker.expect("flow", reason)

    def inherit(self) -> None:
        self.tracker.inherit("engine")

    def inherited(self, label: str) -> str:
        return str(self.tracker.is_inherited(self.entries[label]))

    def close(self) -> Effects:
        return self.tracker.close("stopped")

    def reopen(self) -> None:
        self.tracker.reopen()

    def abandon(self, flow: str) -> Effects:
        return self.tracker.abandon("stopped", flow)

    def disown(self, flow: str) -> None:
        self.tracker.disown(flow)

    def get(self, label: str, *names: str) -> str:
        return " ".join(str(getattr(self.entries[label], name)) for name in names)

    def value(self, label: str) -> str:
        """Return the result of a request, or the type of its failure."""
        value = self.outcomes[label].value
        is_failure = isinstance(value, Failure)
        return next(iter(value)).rpartition(".")[2] if is_failure else str(value)

    def failure(self, label: str) -> str:
        return self.outcomes[label].value.exception_str  # type: ignore[no-any-return]

    def snapshot(self, label: str) -> str:
        """Return the displayed state of a request, and its worker."""
        shown = snapshots.RequestSnapshot(*self.entries[label].described())
        return f"{shown.state} {shown.worker}"

    def ignored(self) -> str:
        return " ".join(f"{name}={n}" for name, n in sorted(self.tracker.ignored.items()))

    def unstarted(self, flow: str | None = None) -> str:
        return " ".join(self.label(each.id) for each in self.tracker.requests.unstarted(flow))

    def count(self) -> str:
        return str(len(self.tracker.requests))

    def timers(self) -> str:
        return str(len(self.tracker._timers))

    def holds(self, worker: str) -> str:
        return str(self.tracker.holds(worker))

    def searching(self) -> str:
        return str(self.tracker.is_searching)

    def needs(self) -> str:
        """Return whether frequent reports of workers are needed."""
        return str(self.tracker.needs_reports(self.now))


def play(name: str, script: str) -> Script:
    """Play a script. Its name may start with options of the tracker, as in `ledger=None: NAME`."""
    return Script(name.rpartition(":")[0]).play(script)
