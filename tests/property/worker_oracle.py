"""A worker whose effects are compared with those of an oracle after each event."""

from __future__ import annotations

import ast
import enum
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

from tests.seams import ledgers, server
from wbengine import __version__, task
from wbengine import exceptions as exc
from wbengine.types import codec
from wbengine.types.failure import Failure

#: Limits of the worker: size of replies, and number and total size of remembered replies.
LIMIT, REMEMBERED, REMEMBERED_BYTES = 4000, 3, 2500
NOW, PERIOD = 100.0, 5.0
EVERYONE: Final = "wbe.engines"
LABELS: Final = ("a", "b", "c", "d", "e1", "e2")


class Job(task.Task):
    def execute(self, x: Any) -> Any:
        return x


KIND = f"{__name__}.Job"
#: Values of arguments that were decoded.
DECODED: Final[list[object]] = []


@codec.allow
class Recorded(enum.Enum):
    """Enum that records each unknown value that is decoded."""

    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Recorded:
        DECODED.append(value)
        return cls.ONE


class Fails:
    """Equals each failure of this type whose text contains the words."""

    def __init__(self, kind: type[BaseException], *words: str) -> None:
        self.kind, self.words = kind, words

    def __eq__(self, other: object) -> bool:
        is_kind = isinstance(other, Failure) and other.check(self.kind)
        return bool(is_kind) and all(word in str(other) for word in self.words)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.kind.__name__}{self.words}"


def error(kind: type[BaseException], text: Any) -> Failure:
    return Failure.from_exception(kind(text))


RECORDED: Final = {"arguments": {"x": {"$wbe": "enum", "c": f"{__name__}.Recorded", "n": "new"}}}
#: Bodies of requests, and the failures of those that never run.
CONTENTS: Final[dict[str, tuple[dict[str, Any], Fails | None]]] = {
    "good": ({}, None),
    "revert": ({"action": "revert", "arguments": {}, "result": ["success", 1]}, None),
    "other-code": ({"arguments": {"x": 1, "new": 2}}, None),
    "missing": ({"arguments": {}}, None),
    "unreadable": ({"arguments": {"x": {"$wbe": "nonsense"}}}, Fails(exc.InvalidFormat)),
    "recorded": (RECORDED, None),
    "unknown": (
        {"task_cls": KIND + "s", **RECORDED},
        Fails(exc.NotFound, KIND + "s", f"did you mean '{KIND}'"),
    ),
    "later-format": ({}, Fails(exc.IncompatibleVersion, "has message format 999, and")),
}
#: Outcomes of tasks: value, and results of the engines of wbengine and TaskFlow.
OUTCOMES: Final[dict[str, tuple[Any, Any, Any]]] = {
    "number": (3, 3, 3),
    "long": ("x" * 1100, "x" * 1100, "x" * 1100),
    "longest": ("x" * 3000, "x" * 3000, "x" * 3000),
    "tuple": ((1, 2), (1, 2), [1, 2]),
    "set": ({1}, {1}, Fails(exc.NotEncodable, "TaskFlow's peers")),
    "object": (
        {"a": [1, {2, object()}]},
        Fails(exc.NotEncodable, "result['a'][1]"),
        Fails(exc.NotEncodable),
    ),
    "subclass": (OrderedDict(a=1), Fails(exc.NotEncodable, "lose its type"), {"a": 1}),
    "too-large": ("x" * 5000, *2 * [Fails(exc.TooLarge, "'job'", "4,000")]),
    "error": (error(RuntimeError, "no"), *2 * [Fails(RuntimeError, "no")]),
    "exit": (error(SystemExit, 3), *2 * [Fails(SystemExit)]),
    "large-error": (error(RuntimeError, "y" * 99_999), *2 * [Fails(exc.TooLarge, "'job'", "yyy")]),
}
#: Type and details of events. Only the first one is sent.
EVENTS: Final[dict[str, tuple[Any, Any]]] = {
    "progress": ("update_progress", {"at": (1, 2)}),
    "object": ("e", {"a": object()}),
    "no-details": ("e", None),
    "no-type": (None, {}),
    "too-large": ("e", {"a": "x" * 20_000}),
}
#: Rows that a delayed job finds: state, epoch relative to that of the job, and owner.
FOUND: Final[dict[str, tuple[Any, int, str | None]]] = {
    "own": (ledgers.ROW_CLAIMED, 0, "w1"),
    "released": (ledgers.ROW_OPEN, 0, None),
    "missing": (None, 0, None),
    "other-epoch": (ledgers.ROW_CLAIMED, 1, "w1"),
    "other-worker": (ledgers.ROW_CLAIMED, 0, "w2"),
    "reopened": (ledgers.ROW_OPEN, 1, None),
    "done": (ledgers.ROW_DONE, 0, "w1"),
}
#: Results of completed rows, and the headers of the reply that one of them contains.
STORED: Final = {"wbe-version": "1", "wbe-worker": "w2", "wbe-epoch": 1, "wbe-seq": 2}
RESULTS: Final = {
    "DONE": server.stored(STORED, {"state": "SUCCESS", "data": {"result": 3}}),
    "EMPTY": None,
    "GARBAGE": b"garbage",
}
#: Events of observers for one request.
OBSERVED: Final = re.compile("(received( started)?( ended| refused| returned| given_up) ?)*")
#: Phases of requests that have neither ended nor left, and events that complete them.
TABLE: Final = ("claiming", "running", "waiting", "unaccepted", "releasing")
COMPLETION: Final = {
    "claiming": "claim", "unaccepted": "return_unaccepted", "releasing": "release",
    "running": "finish", "storing": "store", "unsent": "answer",
}  # fmt: skip


def read(word: str) -> Any:
    """Return the argument of an event; `a:2` is an id with a number."""
    if ":" in word:
        return word[: word.index(":")], int(word[word.index(":") + 1 :])
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word


def began(request: Any) -> float:
    """Return when the pool received the task; 0.0 for every second request, as before that."""
    return NOW + request.receipt if request.receipt % 2 else 0.0


class Observer:
    def __init__(self) -> None:
        self.events: dict[int, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda job, *rest: self.events.setdefault(job.receipt, []).append(name)


class Worker:
    """A worker with its oracle. An event fails if the effects of the worker are unexpected.

    Many events need a request in a certain phase; `which` is its index, 0 by default.
    """

    def __init__(
        self, *, ledger: bool = True, slots: int = 2, plain: bool = False, tasks: int | None = None
    ) -> None:
        self.observer = Observer()
        self.digest = "rows" if ledger else None
        self.digests = {self.digest}
        self.core: Any = server.Server(
            "w1", ["t", "u"], server.offer([Job]), slots, self.digest, plain=plain,
            max_tasks=tasks, max_message_size=LIMIT, observers=[self.observer], birth=10.0,
            code_version="v43",
        )  # fmt: skip
        self.slots, self.left, self.plain = slots, tasks, plain
        #: All requests. The phase of a request is "" if the worker does not have it.
        self.requests: list[Any] = []
        self.jobs: dict[int, server.Job] = {}
        #: Requests without a ledger by id: the last ones, and those whose reply is remembered.
        self.memory: dict[str, Any] = {}
        self.replies: dict[str, Any] = {}
        self.refused: dict[str, int] = {}
        #: Number of acknowledgements of each request.
        self.settled: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.last = 0
        self.serving = self.suspended = False
        self.ended_at = self.died_at = 0.0
        self.done = {"successes": 0, "failures": 0, "working": 0.0}

    def play(self, events: str) -> None:
        """Process events, such as `request b to=e2, claim HELD, cancel a:2 b:1`."""
        for event in events.split(", "):
            name, *words = event.split()
            options = dict(word.split("=") for word in words if "=" in word)
            values = [read(word) for word in words if "=" not in word]
            getattr(self, name)(*values, **{key: read(value) for key, value in options.items()})

    def all(self, *phases: str) -> list[Any]:
        return [each for each in self.requests if each.phase in phases]

    def ordered(self, *phases: str) -> list[Any]:
        return sorted(self.all(*phases), key=lambda each: each.order)

    def having(self) -> list[Any]:
        return [*self.ordered("storing"), *self.all(*TABLE)]

    def take(self, phase: str, which: int) -> tuple[Any, server.Job]:
        """Return the request with an index, which leaves its phase, and its job."""
        request = self.all(phase)[which]
        request.phase = ""
        return request, self.jobs[request.receipt]

    @property
    def serves(self) -> bool:
        return not (self.suspended or self.ended_at)

    # Comparison.

    def expect(self, effects: Iterable[server.Effect], expected: Iterable[Any] = ()) -> None:
        assert list(expected) == [self._shown(effect) for effect in effects]
        assert +self.core.counts == +self.counts
        begun = [job.receipt for job in self.core.begun]
        assert begun == [each.receipt for each in self.ordered("running")]
        running = len(self.all(*TABLE))
        held = running + len(self.all("storing"))
        flags = self.suspended, bool(self.ended_at)
        assert (self.core.running, self.core.holding) == (running, held)
        assert (self.core.suspended, self.core.ending) == flags
        self.replies = {k: v for k, v in self.replies.items() if v.size <= REMEMBERED_BYTES}
        while sum(each.size for each in self.replies.values()) > REMEMBERED_BYTES:
            del self.replies[next(iter(self.replies))]

    def _shown(self, effect: Any) -> tuple[Any, ...]:
        name, job = type(effect).__name__, getattr(effect, "job", None)
        receipt = job.receipt if job is not None else getattr(effect, "receipt", None)
        message = getattr(effect, "message", None)
        if job is not None:
            self.jobs[receipt] = job
        self.settled[receipt] += name in ("Answer", "Acknowledge", "Return")
        if name in ("Answer", "Finish"):
            self.requests[receipt].size = len(message.encoded)
        if name == "Run":
            if began(job):
                job.submitted(began(job))
            return name, receipt, job.task, job.arguments
        if name == "Return":
            return name, receipt, effect.fresh
        if message is None:
            return (name,) if name == "Drain" else (name, receipt)
        if message.correlation_id is None:
            return name, message.routing_key, message.headers, *message.body.values()
        first = (receipt, effect.unhurried) if name == "PublishEvent" else (receipt,)
        return name, *first, *self._reply(message)

    def _reply(self, message: Any) -> tuple[Any, ...]:
        state, content = message.body["state"], server.content(message)
        return message.routing_key, message.correlation_id, message.headers, state, content

    def _message(self, name: str, request: Any, state: str, content: Any, **more: Any) -> Any:
        """Predict the next reply to a request."""
        return (
            name,
            request.receipt,
            request.to,
            request.id,
            self._headers(request, **more),
            state,
            content,
        )

    def _headers(self, request: Any, **more: Any) -> dict[str, Any]:
        request.seq += 1
        own = {"version": "1", "worker": "w1", "epoch": request.epoch, "seq": request.seq, **more}
        named = {f"wbe-{name}": value for name, value in own.items() if value is not None}
        return named if request.ours else {}

    def _running(self, request: Any, unhurried: bool = False, **more: Any) -> tuple[Any, ...]:
        name, receipt, *reply = self._message("PublishEvent", request, "RUNNING", {}, **more)
        return name, receipt, unhurried, *reply

    # Requests.

    def request(
        self, id: str = "a", epoch: int = 1, to: Any = "e1", *, ours: bool = True,
        ledger: Any = "", content: str = "good", redelivered: bool = False, claimed: bool = False,
        expires: float | None = None,
    ) -> None:  # fmt: skip
        """Deliver a request. `ledger` is that of the worker by default."""
        change, refusal = CONTENTS[content]
        if not ours and content in ("unreadable", "later-format"):
            refusal = None
        digest = ledger if ledger != "" else self.digest if ours else None
        body = {
            "action": "execute", "arguments": {"x": 1}, "task_cls": KIND, "task_name": "job",
            "task_version": [1, 0], **change,
        }  # fmt: skip
        version = "999" if content == "later-format" else "1"
        headers: dict[str, Any] = {"wbe-version": version, "wbe-epoch": epoch} if ours else {}
        headers |= {} if digest is None else {"wbe-ledger": digest}
        headers |= {} if expires is None else {"expires": expires}
        request = SimpleNamespace(
            receipt=len(self.requests), id=id, epoch=epoch, key=(id, epoch), to=to, ours=ours,
            ledger=digest is not None, refusal=refusal, asked=epoch, phase="", order=0, seq=0,
            listener=None, cancelled=False, answer=(), size=0, arguments=body["arguments"],
            starts=0, observed=None,
            fits=not ours or content not in ("other-code", "missing"),
        )  # fmt: skip
        if ours and content == "recorded":
            request.arguments = {"x": Recorded.ONE}
        self.requests.append(request)
        late = digest is None and expires is not None and expires < NOW
        expected = self._arrive(request, digest, redelivered, claimed, late)
        message = server.request(id, to, body, headers, redelivered=redelivered)
        self.expect(self.core.on_request(message, request.receipt, NOW, claimed=claimed), expected)

    def _arrive(
        self, request: Any, digest: str | None, redelivered: bool, claimed: bool, late: bool
    ) -> list[Any]:
        acknowledged = [("Acknowledge", request.receipt)]
        if request.id not in LABELS or request.to not in LABELS:
            self.counts["unanswerable"] += 1
            return acknowledged
        known = self.memory.get(request.id)
        highest = known.epoch if known else 0
        if not request.ours:
            request.epoch = request.asked = max(1, highest + (not redelivered))
            request.key = request.id, request.epoch
        if digest not in self.digests:
            self.counts["refused"] += 1
            words = f"uses ledger {digest}" if digest else "uses no ledger", self.digest or "none"
            return [self._message("Answer", request, "FAILURE", Fails(exc.NotFound, *words))]
        owned = [each for each in self.having() if each.key == request.key]
        if owned:
            self.counts["repeated"] += 1
            if owned[0].phase == "storing" or owned[0].to != request.to:
                return [self._claimed_elsewhere(request)]
            return acknowledged
        if request.ledger:
            if not (claimed or (self.serves and self.left != 0)):
                self.counts["returned"] += 1
                return [("Return", request.receipt, False)]
            request.phase = "claiming"
            return [("Claim", request.receipt)]
        if request.epoch <= highest:
            self.counts["repeated"] += 1
            if request.epoch < highest or not request.ours or request.id not in self.replies:
                return acknowledged
            return [("Answer", request.receipt, request.to, request.id, *known.answer)]
        if redelivered:
            self.counts["lost"] += 1
            lost = Fails(exc.WorkerLost, "without a ledger")
            return [self._message("Answer", request, "FAILURE", lost, lost=1)]
        if not self.serves or self.left == 0:
            return self._requeue(request)
        self._forget(request.id)
        self.memory[request.id] = request
        if len(self.memory) > REMEMBERED:
            self._forget(next(iter(self.memory)))
        request.cancelled = self.refused.get(request.id, 0) >= request.epoch
        if late and not request.cancelled:
            request.refusal = Fails(exc.Expired)
        return self._start(request)

    def _forget(self, id: str) -> None:
        self.memory.pop(id, None)
        self.replies.pop(id, None)

    def _claimed_elsewhere(self, request: Any) -> tuple[Any, ...]:
        if not request.ours:
            return "Acknowledge", request.receipt
        answer: tuple[Any, ...] = self._message("Answer", request, "PENDING", {}, ask=0)
        return answer

    def _start(self, request: Any) -> list[Any]:
        request.observed = "received"
        if request.cancelled and request.refusal is None:
            request.refusal = Fails(exc.Cancelled)
        if request.refusal is not None:
            how = "cancelled" if request.cancelled else "refused"
            return self._end(request, "FAILURE", request.refusal, how)
        if not self.serves or self.left == 0:
            return self._requeue(request)
        return self._begin(request)

    def _enter(self, phase: str, request: Any) -> None:
        self.last += 1
        request.phase, request.order = phase, self.last

    def _begin(self, request: Any) -> list[Any]:
        if not request.fits or len(self.all("running")) >= self.slots:
            self._enter("waiting" if request.fits else "unaccepted", request)
            return []
        self._enter("running", request)
        request.starts, request.observed = request.starts + 1, "started"
        self.left = self.left and self.left - 1
        drains = [("Drain",)] if self.left == 0 and not self.ended_at else []
        return [self._running(request, request.ours), self._run(request), *drains]

    def _run(self, request: Any) -> tuple[Any, ...]:
        return "Run", request.receipt, KIND, request.arguments

    def _requeue(self, request: Any) -> list[Any]:
        request.observed = request.observed and "returned"
        request.phase = "releasing" if request.ledger else ""
        if request.ledger:
            return [("Release", request.receipt)]
        if self.memory.get(request.id) is request:
            self._forget(request.id)
        self.counts["returned"] += 1
        return [("Return", request.receipt, True)]

    def _end(
        self, request: Any, state: str, value: Any, how: str | None = None, **times: Any
    ) -> list[Any]:
        self.counts[how or state] += 1
        request.observed = "refused" if how else "ended"
        _, receipt, to, id, *request.answer = self._message("", request, state, value, **times)
        forgotten = [each for each in self.all("unsent") if each.key == request.key]
        self._enter("storing" if request.ledger else "unsent", request)
        for each in forgotten:  # The request was repeated, and takes the place of the first one.
            each.phase, request.order = "", each.order
        if request.ledger:
            return [("Finish", receipt, to, id, *request.answer)]
        if self.memory.get(request.id) is request:
            self.replies[request.id] = request
        answer = "Answer", receipt, to, id, *request.answer
        return [answer] if request.ours or state != "SUCCESS" else [self._running(request), answer]

    def _refill(self) -> list[Any]:
        expected: list[Any] = []
        for request in self.ordered("waiting"):
            if len(self.all("running")) < self.slots and (self.left != 0 or self.ended_at):
                expected += self._begin(request)
        return expected

    # Results of effects.

    def claim(self, verdict: Any = "GRANTED", holder: str = "w2", which: int = 0) -> None:
        """Process the result of a claim; a key of `RESULTS` is the result of a completed row."""
        request, job = self.take("claiming", which)
        result = RESULTS.get(verdict)
        verdict = "DONE" if verdict in RESULTS else verdict
        effects = self.core.on_claim(job, ledgers.Claim(verdict, 1, result, holder))
        if verdict == "GRANTED":
            self.expect(effects, self._start(request))
            return
        self.counts[verdict] += 1
        expected: tuple[Any, ...] = ("Acknowledge", request.receipt)
        if verdict == "HELD" and holder == "w1":
            lost = Fails(exc.WorkerLost, "has no record")
            expected = self._message("Answer", request, "FAILURE", lost, lost=1)
        elif verdict in ("HELD", "STALE") or result == b"garbage":
            expected = self._claimed_elsewhere(request)
        elif result:
            expected = "Answer", request.receipt, request.to, request.id, STORED, "SUCCESS", 3
        self.expect(effects, [expected])

    def forget(self, which: int = 0) -> None:
        """The ledger is unreachable for a claim."""
        request, job = self.take("claiming", which)
        self.counts["returned"] += 1
        self.settled[request.receipt] += 1
        self.core.forget(job)
        self.expect([])

    def finish(self, outcome: str = "number", ended: float | None = 2.5, which: int = 0) -> None:
        """End a task; without `ended`, its times are unknown."""
        request, job = self.take("running", which)
        value, *results = OUTCOMES[outcome]
        expected, started = results[not request.ours], 1.0 if ended is not None else None
        effects = self.core.on_finished(job, server.outcome(value, "w1", started, ended))
        state = "FAILURE" if isinstance(expected, Fails) else "SUCCESS"
        self.done["failures" if state == "FAILURE" else "successes"] += 1
        self.done["working"] += max(0.0, ended - 1.0) if ended is not None else 0.0
        request.seq += "large" in outcome  # A reply that is too large also has a number.
        answer = self._end(request, state, expected, started=started, ended=ended)
        self.expect(effects, answer + self._refill())

    def finish_again(self) -> None:
        """Report results and events of jobs that ended or were abandoned: no effect."""
        keys = {each.key for each in self.all(*TABLE)}
        for request in self.all("gone", "unsent", "storing"):
            job = self.jobs.get(request.receipt)
            if job is not None and request.key not in keys:
                row = ledgers.Row(request.id, request.epoch, ledgers.ROW_CLAIMED, "w1")
                self.expect(self.core.on_finished(job, server.outcome(4)))
                self.expect(self.core.on_event(job, "e", {}))
                self.expect(self.core.on_unstarted(job))
                self.expect(self.core.on_checked(job, row))
                self.expect(self.core.on_released(job, False))

    def event(self, event: str = "progress", which: int = 0) -> None:
        request = self.all("running")[which]
        name, details = EVENTS[event]
        effects = self.core.on_event(self.jobs[request.receipt], name, details)
        request.seq += event == "too-large"
        expected: list[Any] = []
        if event == "progress":
            content = name, details if request.ours else {"at": [1, 2]}
            first, receipt, *reply = self._message("PublishEvent", request, "EVENT", content)
            expected = [(first, receipt, False, *reply)]
        self.expect(effects, expected)

    def store(self, fenced: bool = False, sent: bool = False, which: int = 0) -> None:
        """Store a result. `sent`: also publish it; `fenced`: another worker owns the row."""
        request, job = self.take("storing", which)
        request.phase = "" if fenced or sent else "unsent"
        effects = self.core.on_stored(job, fenced=fenced, sent=sent)
        self.counts["fenced"] += fenced
        self.settled[request.receipt] += sent
        first = ("Acknowledge",) if fenced else ("Answer", request.to, request.id, *request.answer)
        expected = [] if sent else [(first[0], request.receipt, *first[1:])]
        if request.listener is not None and not fenced:
            expected.append(("PublishNotice", None, request.listener, request.id, *request.answer))
        self.expect(effects, expected)

    def refuse_result(self, which: int = 0) -> None:
        """The ledger refuses a result, and stores a failure in its place."""
        request = self.all("storing")[which]
        message = self.core.on_unstorable(self.jobs[request.receipt], exc.LedgerFailure("too long"))
        failure = Fails(exc.LedgerFailure, "the result of task 'job' cannot be stored", "too long")
        _, _, to, id, *request.answer = self._message("", request, "FAILURE", failure)
        assert (to, id, *request.answer) == self._reply(message)

    def answer(self, which: int = 0) -> None:
        """A terminal reply was published."""
        _, job = self.take("unsent", which)
        self.core.on_answered(job)
        self.expect([])

    def check(self, row: str = "own", which: int = 0) -> None:
        """A job that waited for long reads its row."""
        request = self.all("running")[which]
        if not request.ledger:
            return  # It has no row.
        job, receipt = self.jobs[request.receipt], request.receipt
        self.expect(self.core.on_unstarted(job), [("Check", receipt)])
        state, higher, holder = FOUND[row]
        found = state and ledgers.Row(request.id, request.epoch + higher, state, holder)
        effects = self.core.on_checked(job, found)
        if row == "own":
            self.expect(effects, [self._run(request)])
            return
        request.phase, request.observed = "", "returned"
        self.counts["returned" if row == "released" else "thawed"] += 1
        returned = ("Return", receipt, False) if row == "released" else ("Acknowledge", receipt)
        self.expect(effects, [returned, *self._refill()])

    def release(self, released: bool = True, which: int = 0) -> None:
        """The row of a request was released, or possibly not."""
        request, job = self.take("releasing", which)
        effects = self.core.on_released(job, released)
        self.counts["returned"] += released
        request.observed = request.observed if released else "received"
        returned = [("Return", request.receipt, False)]
        self.expect(effects, returned if released else self._begin(request))

    # Messages of engines.

    def ask(self, *asked: tuple[str, int], to: Any = "e2", direct: bool = True) -> None:
        effects = self.core.on_ask(asked, to, direct)
        if to not in LABELS:
            self.counts["unanswerable"] += 1
            asked = ()
        expected: list[Any] = []
        for id, number in asked:
            owned = [each for each in self.having() if each.id == id]
            ended = [each for each in self.ordered("unsent") if each.id == id]
            reply = max(ended, key=lambda each: each.epoch, default=self.replies.get(id))
            if owned:
                expected += [e for each in owned for e in self._readdress(each, to, number)]
            elif reply is not None:
                expected.append(("PublishNotice", None, to, id, *reply.answer))
            elif direct:
                headers = {"wbe-version": "1", "wbe-worker": "w1", "wbe-ask": number}
                expected.append(("PublishNotice", None, to, id, headers, "PENDING", {}))
        self.expect(effects, expected)

    def _readdress(self, request: Any, to: str, number: int) -> list[Any]:
        if number < request.asked:
            return []
        request.asked = number
        if request.phase == "storing":
            request.listener = to
            return []
        request.to = to
        started = began(request) if request.phase == "running" else None
        return [self._running(request, ask=number, started=started)]

    def cancel(self, *cancelled: tuple[str, int]) -> None:
        effects = self.core.on_cancel(cancelled)
        epochs, expected = dict(cancelled), list[Any]()
        for request in self.all(*TABLE):
            if request.cancelled or request.epoch > epochs.get(request.id, -1):
                continue
            request.cancelled = True
            if request.phase == "running":
                expected.append(("Interrupt", request.receipt))
            elif request.phase == "waiting":
                expected += self._start(request)
        for id, epoch in epochs.items():
            if id not in self.memory or self.memory[id].epoch < epoch:
                self.refused[id] = max(epoch, self.refused.pop(id, 0))
                if len(self.refused) > REMEMBERED:
                    del self.refused[next(iter(self.refused))]
        self.expect(effects, expected)

    def query(self, to: Any = "e1") -> None:
        effects = self.core.on_query(to, PERIOD)
        self.counts["unanswerable"] += to not in (*LABELS, None)
        expected: list[Any] = []
        if to in LABELS and (self.serves or not self.plain):
            self.serving = True
            expected = self._notices(to, "beat" if self.ended_at else "ready")
        self.expect(effects, expected)

    def beat(self) -> None:
        engines = dict.fromkeys(each.to for each in self.all(*TABLE) if each.ours)
        expected = [notice for to in engines for notice in self._notices(to, "beat")]
        self.expect(self.core.beat(PERIOD), expected)

    def _notices(self, to: str, kind: str) -> list[Any]:
        """Predict the notices for one engine, or for all."""
        is_ready, headers, begun = kind == "ready", dict[str, Any](), self.ordered("running")
        if self.plain and to == EVERYONE:
            return []
        if not self.plain:
            mine = [*self.ordered("storing", "unsent"), *self.all(*TABLE)]
            state = "busy" if begun else "idle" if self.serving else "started"
            state = "suspended" if self.suspended else state
            life = {
                "state": "dead" if self.died_at else "draining" if self.ended_at else state,
                "birth": 10.0, "shutdown_requested": self.ended_at, "death": self.died_at,
                **self.done, "current": [[each.id, "job"] for each in begun],
                "since": [began(each) for each in begun] if any(map(began, begun)) else [],
            }  # fmt: skip
            values = {
                "version": "1", "worker": "w1", "state": kind, "slots": self.slots,
                "running": min(len(self.all(*TABLE)), self.slots) if self.serves else self.slots,
                "life": {name: each for name, each in life.items() if each}, "period": PERIOD,
                "ids": None if to == EVERYONE else [each.id for each in mine if each.to == to],
            }  # fmt: skip
            ready = {"software": __version__, "ledger": self.digest, "formats": [1], "code": "v43"}
            values |= ready if is_ready else {}
            headers = {f"wbe-{name}": each for name, each in values.items() if each is not None}
        tasks = [KIND] if is_ready else []
        return [("PublishNotice", to, headers, topic, tasks) for topic in ("t", "u")]

    # Life cycle.

    def suspend(self) -> None:
        changed, self.suspended = self.serves, self.suspended or self.serves
        self._announced(self.core.suspend(PERIOD), changed)

    def drain(self) -> None:
        changed, self.ended_at = not self.ended_at, self.ended_at or 20.0
        self._announced(self.core.drain(20.0, PERIOD), changed)

    def _announced(self, effects: list[server.Effect], changed: bool) -> None:
        """Expect an announcement and the return of requests that have not started."""
        expected = self._notices(EVERYONE, "beat") if changed else []
        for request in self.ordered("unaccepted") + self.ordered("waiting") if changed else ():
            expected += self._return(request)
        self.expect(effects, expected)

    def _return(self, request: Any) -> list[Any]:
        return self._start(request) if request.cancelled else self._requeue(request)

    def return_unaccepted(self) -> None:
        expected = [e for each in self.ordered("unaccepted") for e in self._return(each)]
        self.expect(self.core.return_unaccepted(), expected)

    def resume(self) -> None:
        resumes = self.suspended and not self.ended_at
        self.suspended = self.suspended and not resumes
        self.expect(self.core.resume(PERIOD), self._notices(EVERYONE, "beat") if resumes else [])

    def stop(self) -> None:
        """Stop the worker; running jobs are abandoned."""
        was_dead, self.died_at = bool(self.died_at), self.died_at or 40.0
        self.ended_at = self.ended_at or 40.0
        expected = [] if was_dead else self._notices(EVERYONE, "stopped")
        for request in self.all(*TABLE):
            if request.phase in ("running", "waiting", "unaccepted"):
                request.observed = "given_up"
            request.phase = "gone"
        self.expect(self.core.die(40.0, PERIOD), expected)

    def admit(self) -> None:
        """Start a task without a request."""
        admits, self.left = self.left != 0, self.left and self.left - 1
        admitted, effects = self.core.admit()
        assert admitted == admits
        self.expect(
            effects, [("Drain",)] if admits and self.left == 0 and not self.ended_at else []
        )

    def rename_ledger(self, digest: str, *former: str) -> None:
        self.core.rename_ledger(digest, *former)
        self.digest = digest
        self.digests |= {digest, *former}
        for known in (*self.digests, "other"):
            assert self.core.is_known_ledger(known) == (known in self.digests)

    def complete(self) -> None:
        """End everything that is in progress. Each request was settled exactly once."""
        while self.all(*COMPLETION, "waiting"):
            if self.left == 0:
                self.drain()
            phases = [phase for phase in COMPLETION if self.all(phase)]
            if phases:
                getattr(self, COMPLETION[phases[0]])()
        if not self.died_at:
            assert +self.settled == {each.receipt: 1 for each in self.requests}
        for request in self.requests:
            events = self.observer.events.get(request.receipt, [])
            assert OBSERVED.fullmatch(" ".join(events)), events
            assert (events or [None])[-1] == request.observed
            assert events.count("started") == request.starts
