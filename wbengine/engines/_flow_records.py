"""Test records of flows: the steps of one execution of a workflow as JSON, and their replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine._calls import invocation as calls
from wbengine._runtime import workflow_call
from wbengine._runtime.workflows import programs
from wbengine._runtime.workflows.history import History, RecordedStep
from wbengine._tasks.commands import Command
from wbengine.engines._flow_replays import StoredWorkflow
from wbengine.persistence import _step_notes, models
from wbengine.persistence._step_notes import StepNote
from wbengine.types import _tags, codec
from wbengine.types import failure as ft
from wbengine.types._schema_validation import Schema

__all__ = ["SCHEMA", "Replayed", "record_of", "replay"]

SCHEMA: Final = "wbengine/flow-record/1"

_MASKED: Final = "masked"
_MASK_TEXT: Final = "its message is masked"
_MASK_NOTE: Final = (
    "The values of this record are masked. If the function checks their types, or the messages of"
    " exceptions, record the flow with `wbengine flow record --values`"
)
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**62}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_DOCUMENT: Final = Schema(
    {
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "workflow": {"type": "string"},
            "uuid": {"type": "string"},
            "attempt": _COUNT,
            "begun": {"type": ["number", "null"]},
            "versions": {"type": "object", "additionalProperties": _COUNT},
            "arguments": {"type": "object"},
            "steps": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "task": {"type": "string"},
                        "digest": {"type": "string"},
                        "text": {"type": "string"},
                        "state": {"enum": list(states.ATOM_STATES)},
                        "completed": _COUNT,
                        "at": {"type": "number"},
                        "signal": {"type": "string"},
                        "discarded": _TEXTS,
                    },
                    "required": ["name", "task", "digest", "state"],
                },
            },
        },
        "required": ["schema", "workflow", "uuid", "attempt", "arguments", "steps"],
    },
    "record of a flow",
)


class Replayed(NamedTuple):
    """The result of `testing.replay`.

    :ivar steps: number of recorded steps that the function has called.
    :ivar recorded: number of recorded steps.
    :ivar is_over: whether the function has ended.
    :ivar value: what it returned, or its `Failure`.
    """

    steps: int
    recorded: int
    is_over: bool
    value: Any


def record_of(stored: StoredWorkflow, *, values: bool) -> dict[str, Any]:
    """Return the latest execution of a workflow as JSON.

    :param values: include arguments and results. Otherwise only their types are included.
    :raises Exception: as `StoredWorkflow.recorded` and `StoredWorkflow.arguments`.
    """
    record = stored.as_executed()
    content = record.meta_value(models.WORKFLOW) or {}
    arguments = stored.arguments().items()
    return {
        "workflow": record.name,
        "uuid": record.uuid,
        "attempt": record.attempt,
        "begun": record.submitted,
        "versions": dict(content.get(_step_notes.VERSIONS, {})),
        "arguments": {name: _value(each, values) for name, each in arguments},
        "steps": [
            _step(stored, each, values)
            for each in sorted(stored.recorded(), key=lambda step: step.note.position)
        ],
    }


def _step(stored: StoredWorkflow, step: RecordedStep, values: bool) -> dict[str, Any]:
    record, note = step
    content: dict[str, Any] = {
        "name": record.name,
        "task": note.task,
        "digest": note.digest,
        "state": record.state or states.PENDING,
    }
    if values and note.text:
        content["text"] = note.text
    if note.completed is None:
        return content
    content |= {"completed": note.completed, "at": note.at or 0.0}
    if note.signal is not None:
        content["signal"] = note.signal
    if note.discarded:
        content["discarded"] = list(note.discarded)
    if record.failure is not None:
        content["failure"] = _failure(record.failure, values)
    else:
        result = stored.storage.loaded(record.results, f"result of step {record.name!r}")
        content["result"] = _value(result, values)
    return content


def _value(value: Any, is_shown: bool) -> Any:
    """Return a value as typed JSON, or only its type. None is not masked."""
    if is_shown or value is None:
        return {"value": codec.pack(value)}
    return {_MASKED: type(value).__name__}


def _failure(failure: ft.Failure, is_shown: bool) -> dict[str, Any]:
    content = failure.to_json(is_shown, include_home=True)
    if not is_shown:
        kept = {name: content[name] for name in ("exc_type_names", "version")}
        content = {**kept, "exception_str": _MASK_TEXT, "traceback_str": None, "exc_args": []}
        if "home" in (described := failure.to_json(False, include_home=True)):
            content["home"] = described["home"]
    return content


@codec.allow
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Masked:
    """The place of a masked value. The replay ends when the function uses it.

    :ivar source: what has this value, such as "result of step 1 ('charge')".
    """

    type_name: str
    source: str

    #: Masked values that the function of the current replay has used. None: there is no replay.
    uses: ClassVar[list[Masked] | None] = None

    def error(self) -> exceptions.InvalidState:
        return exceptions.InvalidState(
            f"The {self.source} is masked, and the function uses this {self.type_name}: record the"
            " flow with `wbengine flow record --values`"
        )

    def _end(self, *args: object) -> NoReturn:
        if Masked.uses is None:
            raise self.error()
        Masked.uses.append(self)
        # `except Exception` in the function must not catch it.
        raise exceptions.WorkflowInterrupted("The function uses a masked value")

    def __repr__(self) -> str:
        if Masked.uses is not None:
            self._end()
        return f"<masked {self.type_name}>"

    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _end
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __str__ = __format__ = _end
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _end
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _end
    __int__ = __float__ = __index__ = __round__ = __abs__ = __hash__ = _end
    __enter__ = __exit__ = __and__ = __or__ = __rand__ = __ror__ = _end

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._end()


class _RecordedHistory(History):
    """A history whose digests are not compared for arguments with masked values."""

    def check(self, position: int, command: Command) -> None:
        step = self.steps.get(position)
        if step is not None and step.note.task == command.path and _has_mask(command.arguments):
            return
        super().check(position, command)


def _has_mask(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_mask, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_mask, value))
    return type(value) is Masked


def replay(workflow: task_module.Workflow, document: Any) -> Replayed:
    """Call the function of a workflow with the recorded results. No step is executed.

    :raises InvalidFormat: if the document is not a record of a flow.
    :raises NonDeterministicWorkflow: if the function does not repeat the recorded steps.
    :raises InvalidState: if the function uses a masked value.
    """
    try:
        _DOCUMENT.check(document)
        record = models.TaskDetail(document["workflow"], document["uuid"])
        record.attempt, record.submitted = document["attempt"], document.get("begun")
        versions = document.get("versions", {})
        record.meta[models.WORKFLOW] = {_step_notes.VERSIONS: versions}
        steps = [_recorded(record, *each) for each in enumerate(document["steps"])]
        arguments = {
            name: _read(each, f"input {name!r}") for name, each in document["arguments"].items()
        }
    except (LookupError, TypeError, ValueError) as error:
        raise exceptions.InvalidFormat(f"The record of the flow is damaged: {error}") from error
    history = _RecordedHistory(document["workflow"], steps)
    call = workflow_call.WorkflowCall(0, workflow, calls.EXECUTE, record, arguments)
    values = storage_module.Storage(models.FlowDetail(record.name, record.uuid))
    Masked.uses = uses = list[Masked]()
    try:
        program = programs.replay(call, history, values, 0.0, _check_tags)
    finally:
        Masked.uses = None
    if uses:  # The end of the function is no difference.
        raise uses[0].error()
    try:
        if program.error is not None:
            raise program.error
        if not program.is_over:
            history.check_end(program.called_count)
    except exceptions.NonDeterministicWorkflow as error:
        if any(_has_mask([*arguments.values(), step.record.results]) for step in steps):
            error.add_note(_MASK_NOTE)
        raise
    return Replayed(program.called_count, len(steps), program.is_over, program.value)


def _check_tags(tags: Mapping[str, Any]) -> None:
    _tags.check({key: value for key, value in tags.items() if type(value) is not Masked})


def _recorded(record: models.TaskDetail, position: int, content: Mapping[str, Any]) -> RecordedStep:
    step = models.TaskDetail(content["name"], f"{record.uuid}-{position}")
    step.state = content["state"]
    note = StepNote(
        record.uuid,
        record.attempt,
        position,
        content["task"],
        content["digest"],
        content.get("text", "..." if content["digest"] else ""),
        completed=content.get("completed"),
        at=content.get("at"),
        signal=content.get("signal"),
        discarded=content.get("discarded", ()),
    )
    if "failure" in content:
        step.failure = ft.Failure.from_dict(content["failure"], read_home=True)
    elif "result" in content:
        step.results = _read(
            content["result"], f"result of step {position} ({note.short_name(step.name)!r})"
        )
    return RecordedStep(step, note)


def _read(content: Mapping[str, Any], source: str) -> Any:
    is_masked = _MASKED in content
    return Masked(content[_MASKED], source) if is_masked else codec.unpack(content["value"])
