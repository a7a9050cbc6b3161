"""Pages of flow summaries, and the queries that select them."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine.signals import OR
from wbengine.types import _tags

__all__ = [
    "LIMIT", "Backlog", "EndedFlow", "FlowRow", "Page", "Position", "Query", "Removable", "Wait",
    "check_tags", "engine_names", "fair_key_of", "latest_step_counts", "queue_of", "waits_of",
]  # fmt: skip

#: Default number of flows on a page.
LIMIT: Final = 50
#: Kind of the engine of flows whose record contains none.
UNRECORDED_ENGINE: Final = "serial"
#: Queue of submitted flows whose note contains none.
UNRECORDED_QUEUE: Final = "default"
#: Kinds of engines with two names.
_ENGINE_NAMES: Final = (("serial", "default"), ("worker-based", "workers"))


@functools.lru_cache(maxsize=64)
def name_regex(text: str) -> str:
    """Return a regular expression that matches names which contain a text in any case.

    Python, PostgreSQL, MySQL and MariaDB read it alike. Databases have different rules for `lower`.
    """
    return "".join(
        f"[{forms}]" if len(forms) > 1 else re.escape(forms) for forms in _forms_of_letters(text)
    )


def name_glob(text: str) -> str:
    """Return the pattern of `name_regex` for GLOB in SQLite."""
    parts = (
        f"[{forms}]" if len(forms) > 1 or forms in "*?[" else forms
        for forms in _forms_of_letters(text)
    )
    return f"*{''.join(parts)}*"


def _forms_of_letters(text: str) -> Iterator[str]:
    """Yield the forms of each character in lower case, upper case and title case.

    Forms of several characters, such as "SS" for "ß", do not count.
    """
    for char in text[: object_names.MAX_NAME_LENGTH + 1]:  # No name contains a longer text.
        forms = char, char.lower(), char.upper(), char.title()
        yield "".join(dict.fromkeys(form for form in forms if len(form) == 1))


def check_tags(tags: object) -> dict[str, str]:
    """Return valid tags that are texts as a dict.

    :raises TypeError: if `tags` is not a dict of str.
    :raises ValueError: if there are too many tags, or a key or value is invalid.
    """
    if not isinstance(tags, Mapping) or not all(isinstance(each, str) for each in tags.values()):
        raise TypeError(f"tags must be a dict of str, got {tags!r:.200}")
    return {key: _tags.text_of(value) for key, value in _tags.check(tags).items()}


class Wait(NamedTuple):
    """A task that waits from `since` to `until` (None: forever), in Unix seconds.

    :ivar signal: the signal that ends the wait earlier, or "".
    :ivar number: number of the next signal of this name when the wait began.
    :ivar schema: JSON schema of the value, if the task expects a type.
    """

    task: str
    signal: str
    since: float
    until: float | None
    number: int = 1
    schema: Mapping[str, Any] | None = None

    def expects(self, signal: str) -> bool:
        """Return whether the wait expects a type of the signal with this name."""
        return self.schema is not None and signal in self.signal.split(OR)

    def to_meta(self) -> dict[str, Any]:
        """Return the value for a field of `meta`; number 1 and a missing schema are omitted."""
        value = self._asdict()
        if self.number == 1:
            del value["number"]
        if self.schema is None:
            del value["schema"]
        return value


def engine_names(kind: str) -> tuple[str, ...]:
    """Return the names of a kind of engine, the preferred one first."""
    return next((names for names in _ENGINE_NAMES if kind in names), (kind,))


def queue_of(note: object) -> str | None:
    """Return the queue in the note of a submission, or None if the flow was not submitted."""
    return str(note.get("queue", UNRECORDED_QUEUE)) if isinstance(note, Mapping) else None


def fair_key_of(note: object) -> str | None:
    """Return the key in the note of a submission, or None if there is none."""
    fair = note.get("fair") if isinstance(note, Mapping) else None
    return str(fair[0]) or None if fair else None


def waits_of(value: object) -> tuple[Wait, ...]:
    """Return the valid waits in a field of `meta`."""
    if not isinstance(value, list):
        return ()
    waits = (wait_of(each.get("task"), each) for each in value if isinstance(each, Mapping))
    return tuple(wait for wait in waits if wait is not None)


def wait_of(task: object, value: object) -> Wait | None:
    """Return the wait of a task in a field of `meta`, or None if there is none or it is damaged."""
    if not isinstance(value, Mapping) or not {"signal", "since", "until"} <= value.keys():
        return None
    signal, since, until = value["signal"], value["since"], value["until"]
    number, schema = value.get("number", 1), value.get("schema")
    if not (isinstance(task, str) and isinstance(signal, str) and type(number) is int):
        return None
    is_known = isinstance(since, int | float) and isinstance(until, int | float | None)
    schema = schema if isinstance(schema, Mapping) else None
    return Wait(task, signal, since, until, number, schema) if is_known else None


def latest_step_counts(counts: Iterable[tuple[str, int, str, int]]) -> dict[str, int]:
    """Return the number of steps by state in the latest attempt of each workflow.

    :param counts: uuid and attempt of the workflow, state, and number of steps.
    """
    by_attempt: dict[str, dict[int, Counter[str]]] = {}
    for workflow, attempt, state, count in counts:
        by_attempt.setdefault(workflow, {}).setdefault(attempt, Counter())[state] += count
    total: Counter[str] = Counter()
    for attempts in by_attempt.values():
        total += attempts[max(attempts)]
    return dict(total)


class Removable(NamedTuple):
    """Conditions for the deletion of a flow without a command that no engine runs.

    :ivar states: allowed states; PENDING includes flows that never ran.
    :ivar before: time in Unix seconds before which the flow was last written.
    :ivar dead: epoch of a lease whose owner is known to be dead: that lease does not count.
    """

    states: Collection[str] = states.FLOW_STATES
    before: float = 1e18
    dead: int | None = None

    def refusal(self, flow_uuid: str) -> exceptions.InvalidState:
        return exceptions.InvalidState(
            f"Flow {flow_uuid} must be in {' or '.join(sorted(self.states))}, without a pending"
            " command, and unchanged since it was selected; it was not deleted"
        )


class EndedFlow(NamedTuple):
    """An ended flow that can be deleted.

    :ivar ended: its end in Unix seconds, as for `Connection.ended_flows`.
    """

    uuid: str
    state: str
    book_uuid: str
    ended: float = 0.0


class FlowRow(NamedTuple):
    """The summary of a flow in a list.

    :ivar state: the state of the flow; PENDING if it never ran.
    :ivar created: creation time in Unix seconds; None if unknown.
    :ivar updated: time of the latest write in Unix seconds; None if unknown.
    :ivar counts: number of tasks by state.
    :ivar lease: the owner that runs the flow, or None; `owners.describe` returns a readable text.
    :ivar error: reason for FAILURE or REVERTED in one line; None if unknown.
    :ivar cancelled: whether the flow was cancelled.
    :ivar command: the command that no engine has carried out yet (one of `commands.COMMANDS`), or
        None.
    :ivar parked: whether the flow is parked.
    :ivar waits_for: signals for which the flow waits.
    :ivar blocked: whether its code did not repeat the recorded steps.
    :ivar code: code that executed the latest task or step, or None.
    :ivar step_counts: number of steps by state, in the latest attempt of each workflow.
    :ivar queue: the queue of a flow that was submitted to conductors, or None.
    :ivar paused_by: patterns of the pauses of task types for which the flow is or was parked.
    :ivar parent: the flow that started this one as a child, or None.
    :ivar undo_until: see `FlowDetail.undo_until`.
    :ivar is_fork: whether the flow is a fork.
    :ivar has_forks: whether the flow was forked.
    """

    uuid: str
    name: str
    book_uuid: str
    book_name: str
    state: str
    created: float | None
    updated: float | None
    counts: Mapping[str, int]
    lease: str | None
    error: str | None
    tags: Mapping[str, _tags.Value] = MappingProxyType({})
    cancelled: bool = False
    command: str | None = None
    parked: bool = False
    waits_for: tuple[Wait, ...] = ()
    blocked: bool = False
    code: str | None = None
    step_counts: Mapping[str, int] = MappingProxyType({})
    queue: str | None = None
    paused_by: tuple[str, ...] = ()
    parent: str | None = None
    undo_until: float | None = None
    is_fork: bool = False
    has_forks: bool = False

    @property
    def submitted(self) -> bool:
        """Whether the flow was submitted to conductors."""
        return self.queue is not None


class Backlog(NamedTuple):
    """The flows in state PENDING: their number, and the creation time of the oldest.

    :ivar oldest: Unix seconds; None if there are none, or the time is unknown.
    """

    flows: int = 0
    oldest: float | None = None


class Page(NamedTuple):
    """A page of flows. `after` is the position at which the next page starts, or None."""

    flows: Sequence[FlowRow]
    after: str | None


class Position(NamedTuple):
    """The position of a flow in the order of creation."""

    created: float
    tie: str | int

    def __str__(self) -> str:
        return json.dumps(list(self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse a position.

        :raises ValueError: if the text is invalid.
        """
        try:
            created, tie = json.loads(text)
            if isinstance(tie, int) and abs(tie) >= 2**63:
                raise ValueError("the tie is out of range")
            return cls(float(created), tie if isinstance(tie, int) else str(tie))
        except (ValueError, TypeError, OverflowError):
            raise ValueError(
                f"after must be a position from an earlier page, got {text!r:.80}"
            ) from None


def _has_part(name: str, text: str) -> bool:
    return re.search(name_regex(text), name) is not None


@dataclass(frozen=True, slots=True)
class Query:
    """The filter and the order of a list of flows."""

    states: Collection[str] | None = None
    name: str | None = None
    since: float | None = None
    book: str | None = None
    uuid: str | None = None
    newest_first: bool = True
    limit: int = LIMIT
    after: Position | None = None
    text: str | None = None
    tags: tuple[_tags.Condition, ...] = ()
    commanded: bool = False
    error: str | None = None
    resent: bool = False
    engine: str | None = None
    queues: tuple[str, ...] | None = None
    roots: bool = False
    codes: tuple[str, ...] | None = None
    #: The whole uuid of the only flow; `uuid` is the start of those of several.
    flow: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.states, str):
            raise TypeError(f"states must be a collection of states, got {self.states!r}")
        for state in self.states or ():
            states.check_known("state of a flow", state, states.FLOW_STATES)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"limit must be a whole number of at least 1, got {self.limit!r}")
        if self.engine is not None and (not self.engine or ":" in self.engine):
            raise ValueError(f"engine must be a kind without options, got {self.engine!r:.80}")

    def matches_engine(self, recorded: object) -> bool:
        """Return True if the value in the `meta` of a flow matches."""
        kind = recorded if isinstance(recorded, str) else UNRECORDED_ENGINE
        return self.engine is None or kind in engine_names(self.engine)

    def matches_queue(self, note: object) -> bool:
        """Return True if the note of the submission in the `meta` of a flow matches."""
        return self.queues is None or queue_of(note) in self.queues

    def matches_state(self, state: str | None) -> bool:
        return self.states is None or (state or states.PENDING) in self.states

    def matches(self, uuid: str, name: str, meta: Mapping[str, Any]) -> bool:
        text = self.text
        return (
            (self.name is None or _has_part(name, self.name))
            and (self.uuid is None or uuid.startswith(self.uuid))
            and self.flow in (None, uuid)
            and (text is None or _has_part(name, text) or uuid.startswith(text))
            and all(condition.matches(meta) for condition in self.tags)
            and not (self.roots and _tags.parent_in(meta) is not None)
        )

    def matches_error(self, error: str | None) -> bool:
        return self.error is None or (error is not None and _has_part(error, self.error))

    def matches_position(self, place: Position) -> bool:
        """Return True if a flow at this position matches `since` and is not on an earlier page."""
        if self.since is not None and place.created < self.since:
            return False
        if self.after is None:
            return True
        return place < self.after if self.newest_first else place > self.after
