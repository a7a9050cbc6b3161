"""Events of wbengine's own requests: what Celery's monitors see of the tasks of flows."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.jobs import Job, Key

__all__ = ["Watch", "shown"]

#: So many characters are told of arguments and results, and of tracebacks (their end).
LONGEST: Final = 1024
_LONGEST_TRACEBACK: Final = 8192

_GIVEN_UP: Final = "the worker ended before the task did"


class Watch:
    """Tells `tell(type, **fields)` what becomes of a worker's requests, as events of Celery tasks.

    `uuid` is the id of the request, `name` that of the task class (with `.revert` where the task is
    reverted), `root_id` the uuid of the flow; `retries` counts the attempts before.  `atom`, a
    field of our own, is the name that the task has in its flow.

    It is an `Observer` of one worker: it waits for nobody, and runs no code of tasks.
    """

    def __init__(self, tell: Callable[..., Any]) -> None:
        self._tell = tell
        self._running: set[Key] = set()
        #: How many tasks began.
        self.processed = 0

    @property
    def active(self) -> int:
        """How many tasks run."""
        return len(self._running)

    def received(self, job: Job) -> None:
        unit = job.unit
        name, arguments = job.name, "{}"
        if unit is not None:
            name = unit.task_cls if unit.action == "execute" else f"{unit.task_cls}.{unit.action}"
            arguments = shown(unit.arguments)
        self._tell(
            "task-received",
            uuid=job.id,
            name=name,
            args="()",
            kwargs=arguments,
            retries=max(0, job.attempt - 1),
            eta=None,
            expires=_iso(job.expires),
            root_id=job.flow or None,
            parent_id=None,
            atom=job.name,
        )

    def started(self, job: Job) -> None:
        self._running.add(job.key)
        self.processed += 1
        self._tell("task-started", uuid=job.id)

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._running.discard(job.key)
        if outcome.failed:
            self._failed(job, outcome.value, ran=True)
            return
        runtime = None
        if outcome.started is not None and outcome.ended is not None:
            runtime = max(0.0, outcome.ended - outcome.started)
        self._tell("task-succeeded", uuid=job.id, result=shown(outcome.value), runtime=runtime)

    def refused(self, job: Job) -> None:
        failure = ft.Failure.from_exception(job.refusal or exc.Cancelled("refused"))
        self._failed(job, failure, ran=False)

    def returned(self, job: Job) -> None:
        self._running.discard(job.key)
        # The first is what the reference says, the other what Celery sends.
        self._tell("task-rejected", uuid=job.id, requeued=True, requeue=True)

    def given_up(self, job: Job) -> None:
        self._running.discard(job.key)
        self._failed(job, ft.Failure.from_exception(exc.WorkerLost(_GIVEN_UP)), ran=True)

    def _failed(self, job: Job, failure: ft.Failure, *, ran: bool) -> None:
        expired = failure.check(exc.Expired) is not None
        if expired or (job.cancelled and failure.check(exc.Cancelled) is not None):
            ended = ran and not expired
            self._tell("task-revoked", uuid=job.id, terminated=ended, signum=None, expired=expired)
            return
        names = tuple(failure)
        kind = names[0].rpartition(".")[2] if names else "Exception"
        self._tell(
            "task-failed",
            uuid=job.id,
            exception=f"{kind}({failure.exception_str[:LONGEST]!r})",
            traceback=failure.traceback_str[-_LONGEST_TRACEBACK:],
        )


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


# Values, as `repr` shows them. --------------------------------------------------------------------

#: Whose `repr` is known, and short.
_PLAIN: Final = frozenset((bool, complex, float, type(None), dt.date, dt.timedelta, uuid.UUID))
_ZONES: Final = (type(None), dt.timezone)
_BRACKETS: Final[Mapping[type, tuple[str, str]]] = {
    dict: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    list: ("[", "]"),
    set: ("{", "}"),
    tuple: ("(", ")"),
}
_MOST_ITEMS: Final = 64
_DEEPEST: Final = 4


def shown(value: Any, longest: int = LONGEST) -> str:
    """Much as `repr(value)[:longest]`, but no longer than that takes, and no code of its classes
    is run: of what is not built in, only the class is told.
    """
    text = _shown(value, longest, _DEEPEST)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _shown(value: Any, room: int, depth: int) -> str:
    cls = type(value)
    if cls is str or cls is bytes:
        return repr(value[:room])
    if cls is int:
        return repr(value) if value.bit_length() < 4096 else "<a long int>"
    if cls in _PLAIN or (cls is dt.datetime and type(value.tzinfo) in _ZONES):
        return repr(value)
    brackets = _BRACKETS.get(cls)
    if brackets is None:
        return f"<{cls.__module__}.{cls.__qualname__}>"
    if depth == 0:
        return f"{brackets[0]}...{brackets[1]}"
    parts: list[str] = []
    # In one step: whoever made it may go on changing it.
    items = list(itertools.islice(value.items() if cls is dict else value, _MOST_ITEMS + 1))
    for item in items:
        if room <= 0 or len(parts) == _MOST_ITEMS:
            parts.append("...")
            break
        if cls is dict:
            part = f"{_shown(item[0], room, depth - 1)}: {_shown(item[1], room, depth - 1)}"
        else:
            part = _shown(item, room, depth - 1)
        parts.append(part)
        room -= len(part) + 2
    inner = ", ".join(parts)
    if cls is tuple and len(parts) == 1:
        inner += ","
    if cls in (set, frozenset) and not parts:
        return repr(value)
    return f"{brackets[0]}{inner}{brackets[1]}"
