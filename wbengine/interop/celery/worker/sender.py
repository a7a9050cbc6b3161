"""The thread that tells what became of Celery's tasks."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from amqp import exceptions as amqp_errors
from kombu import exceptions as kombu_errors

from wbengine import exceptions as exc
from wbengine.interop.celery.canvas import chords
from wbengine.interop.celery.protocol import codec, results
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import CountChord, SaveGroup, Step
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.interop.celery.worker import backends, deeds, lines, posting

__all__ = ["Sender"]

LOG = logging.getLogger(__name__)

#: So many duties are done together at most.
_BATCH: Final = 200

#: Seconds between two attempts, the longest at last.
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0)

#: What is raised when a broker went away.
_AWAY: Final = (
    kombu_errors.OperationalError,
    kombu_errors.ConnectionError,
    amqp_errors.ConnectionError,
)


class Settle(Protocol):
    """Has messages acknowledged, or rejected."""

    def __call__(self, receipts: Sequence[lines.Receipt], acknowledged: bool = True) -> None: ...


class _Duty:
    """What is left to be done of one effect."""

    __slots__ = (
        "effect", "ends", "gathered", "groups", "message", "parts", "results", "sends", "sizes",
    )  # fmt: skip

    def __init__(self, effect: deeds.Effect, message: TaskMessage | None = None) -> None:
        self.effect = effect
        self.message = message
        #: What the backend has to know before they are sent: groups, and what is told of them.
        self.sizes: list[tuple[str, int]] = []
        self.groups: list[tuple[str, Any]] = []
        #: Messages, each with queue, exchange and routing key.
        self.sends: list[tuple[Wire, str | None, str | None, str | None]] = []
        self.results: list[results.Result] = []
        self.parts: deque[results.ChordPart] = deque()
        #: The chord whose body is just being sent, and what is left of that.
        self.gathered: backends.Gathered | None = None
        self.ends: _Duty | None = None

    @property
    def is_needless(self) -> bool:
        """Whether its message comes again, and would be there twice if it were sent, too."""
        match self.effect:
            case deeds.GiveBack(job=job):
                return bool(job.receipt.lost)
            case deeds.Redirect(receipt=receipt):
                return bool(receipt.lost)
        return False


class Sender:
    """Do what is owed, in order, each thing for as long as it takes: a broker or a result backend
    that is away is waited for.

    Messages are settled when all that is owed to them is done.  What cannot be done at all is
    logged, and left out.  `default_queue` is for what does not say where it is to go.
    """

    def __init__(
        self,
        post: posting.Post,
        backend: backends.Backend,
        settle: Settle,
        default_queue: str,
    ) -> None:
        self._post = post
        self._backend = backend
        self._settle = settle
        self._default_queue = default_queue
        self._changed = threading.Condition()
        self._queue: deque[deeds.Effect] = deque()
        self._busy = False
        self._closing = False
        self._stopping = threading.Event()
        self._told = ""
        self._away = (exc.TransportFailure, OSError, *_AWAY, *post.errors, *backend.errors)
        self._thread = threading.Thread(
            target=self._run, name="wbengine-celery-sender", daemon=True
        )

    # For any thread.

    def start(self) -> None:
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether anything is left to be done."""
        return self._busy or bool(self._queue)

    def put(self, effect: deeds.Effect) -> None:
        """Do what an `End`, `Note`, `GiveBack` or `Redirect` says; returns at once."""
        with self._changed:
            self._queue.append(effect)
            self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to be done; False if time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.busy, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Do what is left, for so long at most, and end.  Idempotent."""
        self.flush(timeout)
        self._stopping.set()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(max(0.1, timeout))

    # In its thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._closing)
                if self._closing:
                    break
                self._busy = True
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH))]
            self._do([self._duty(effect) for effect in batch])
        self._post.reset()
        with contextlib.suppress(Exception):
            self._backend.close()

    def _do(self, duties: list[_Duty]) -> None:
        attempts, careful = 0, False
        while not self._stopping.is_set():
            try:
                self._perform(duties, careful)
            except self._post.refusals as error:
                # One of them is refused: each by itself tells which.
                LOG.debug("a message was refused (%s)", error)
                self._post.reset()
                careful = True
            except self._away as error:
                self._tell(error)
                self._post.reset()
                self._stopping.wait(_PAUSES[min(attempts, len(_PAUSES) - 1)])
                attempts += 1
            except Exception:
                self._post.reset()
                if len(duties) > 1:  # it is of one of them
                    for duty in duties:
                        self._do([duty])
                    return
                LOG.exception("what became of a task cannot be told: %s", duties[0].effect)
                break
            else:
                self._told = ""
                break
        self._settled(duties)

    def _tell(self, error: BaseException) -> None:
        why = " ".join(str(error).split()) or type(error).__name__
        if why != self._told:
            LOG.warning("results wait for their broker or backend: %s", why)
        self._told = why

    def _settled(self, duties: list[_Duty]) -> None:
        done: dict[bool, list[lines.Receipt]] = {}
        for duty in duties:
            match duty.effect:
                case deeds.End(job=job, reject=reject):
                    receipt = job.receipt
                    receipt.job = job
                    done.setdefault(not reject, []).append(receipt)
                case deeds.GiveBack(job=job):
                    receipt = job.receipt
                    receipt.job = job
                    done.setdefault(True, []).append(receipt)
                case deeds.Redirect(receipt=receipt):
                    done.setdefault(True, []).append(receipt)
        for acknowledged, receipts in done.items():
            self._settle(receipts, acknowledged)

    def _perform(self, duties: list[_Duty], careful: bool) -> None:
        """All of it, or what is left of it; what is done is not done again."""
        for duty in duties:
            if duty.is_needless:
                duty.sends.clear()
        self._tell_all(duties, careful)
        for duty in duties:
            while duty.parts:
                self._count(duty, careful)
                duty.parts.popleft()

    def _tell_all(self, duties: Sequence[_Duty], careful: bool) -> None:
        """All but the parts of chords."""
        for duty in duties:
            while duty.sizes:
                with self._forgiving("the size of a chord"):
                    self._backend.set_size(*duty.sizes[0])
                duty.sizes.pop(0)
            while duty.groups:
                with self._forgiving("a group"):
                    self._backend.save_group(*duty.groups[0])
                duty.groups.pop(0)
        self._send(duties, careful)
        found = [result for duty in duties for result in duty.results if _is_written(result)]
        if found:
            self._backend.store(self._post, found)
            self._post.flush()
            for duty in duties:
                duty.results.clear()

    def _send(self, duties: Sequence[_Duty], careful: bool) -> None:
        for duty in duties:
            for send in list(duty.sends):
                if not careful:
                    self._post.publish(*send)
                    continue
                try:
                    self._post.publish(*send)
                    self._post.flush()
                except self._post.refusals as error:
                    wire, queue, exchange, key = send
                    LOG.error(
                        "task %s cannot be sent to %s: %s",
                        wire.headers.get("task"), exchange or queue or key, error,
                    )  # fmt: skip
                    self._post.reset()
                duty.sends.remove(send)
        self._post.flush()
        for duty in duties:
            duty.sends.clear()

    def _count(self, duty: _Duty, careful: bool) -> None:
        """Count a part of a chord; whoever counts the last one sends its body."""
        part = duty.parts[0]
        if duty.gathered is None:
            with self._forgiving(f"task {part.id}, a part of chord {part.group},"):
                duty.gathered = self._backend.count(part)
        gathered = duty.gathered
        if gathered is None:
            return
        if not self._backend.keeps(gathered):
            LOG.warning("the body of chord %s is sent by somebody else", part.group)
            duty.gathered = None
            return
        if duty.ends is None:  # once: what it is made of gets ids
            assert duty.message is not None
            fallen, steps = chords.finished(
                duty.message, gathered.parts, time.time(), _new_id, gathered.part
            )
            duty.ends = _Duty(duty.effect, duty.message)
            self._add(duty.ends, steps, fallen)
        self._tell_all([duty.ends], careful)
        self._backend.finish(gathered)
        duty.parts.extend(duty.ends.parts)
        duty.gathered = duty.ends = None

    @contextlib.contextmanager
    def _forgiving(self, what: str) -> Iterator[None]:
        """What a backend cannot do, it could not do later."""
        try:
            yield
        except exc.ExecutionFailure as error:
            LOG.error("%s cannot be counted: %s", what, error)

    # What is owed.

    def _duty(self, effect: deeds.Effect) -> _Duty:
        match effect:
            case deeds.End(job=job):
                duty = _Duty(effect, job.message)
                if effect.result is not None:
                    duty.results.append(effect.result)
                if effect.chord is not None:
                    duty.parts.append(effect.chord)
                self._add(duty, effect.steps, effect.fallout)
                return duty
            case deeds.Note(job=job, result=result):
                duty = _Duty(effect, job.message)
                duty.results.append(result)
                return duty
            case deeds.GiveBack(job=job):
                duty = _Duty(effect)
                duty.sends.append((job.wire.unmarked(), job.queue, None, None))
                return duty
            case deeds.Redirect(wire=wire, queue=queue):
                duty = _Duty(effect)
                duty.sends.append((wire.unmarked(), queue, None, None))
                return duty
        raise TypeError(f"nothing is sent for {effect!r}")

    def _add(self, duty: _Duty, steps: Sequence[Step], fallen: Sequence[results.Fallen]) -> None:
        for step in steps:
            if isinstance(step, CountChord):
                duty.sizes.append((step.group, step.size))
                continue
            if isinstance(step, SaveGroup):
                duty.groups.append((step.group, step.result))
                continue
            try:
                wire = codec.encode(step.message)
            except Exception as error:  # whatever a signature does
                LOG.error("task %s cannot be sent: %s", step.message.task, error)
                continue
            queue = step.queue or (None if step.exchange else self._default_queue)
            duty.sends.append((wire, queue, step.exchange, step.routing_key))
        for each in fallen:
            if each.result is not None:
                duty.results.append(each.result)
            if each.chord is not None:
                duty.parts.append(each.chord)


def _is_written(result: results.Result) -> bool:
    """Whether a result can be; one that cannot is left out."""
    try:
        return bool(result.encoded)
    except Exception as error:
        LOG.error("the result of task %s cannot be written: %s", result.id, error)
        return False


def _new_id() -> str:
    return str(uuid.uuid4())
