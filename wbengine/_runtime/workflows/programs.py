"""Calls of the functions of workflows, for a run or only for a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine._concurrency import conditions
from wbengine._runtime.workflow_call import WorkflowCall
from wbengine._runtime.workflows.async_program import AsyncProgram
from wbengine._runtime.workflows.history import History, RecordedStep
from wbengine._runtime.workflows.program import Completion, Program
from wbengine._runtime.workflows.thread_program import ThreadProgram
from wbengine.persistence import models
from wbengine.storage import Storage

__all__ = ["VERSIONS", "check_replay", "of_call"]

#: Key of `meta["workflow"]`: versions of changes (`steps.version`) that the attempt uses.
VERSIONS: Final = "versions"


def of_call(
    call: WorkflowCall,
    history: History,
    on_waiting: Callable[[], object],
    *,
    on_read: Callable[[models.TaskDetail], None],
    read_version: Callable[[str, int, bool], int],
    publish: Callable[[str, Any], None],
    tag: Callable[[Mapping[str, Any], bool], None],
    values: Storage,
    now: float,
) -> Program:
    """Return the call of a workflow's function.

    :param on_waiting: as for `ThreadProgram`.
    :param on_read: called with the record of a step after its result was read for the function.
    :param values: loads and stores large values.
    :param now: time of the call in Unix seconds, unless the workflow has begun earlier.
    """
    workflow, record = call.task, call.record

    def read(position: int) -> Completion:
        step, note = history.steps[position]
        stored = step.failure if step.failure is not None else step.results
        on_read(step)
        # An error ends the run: the function must not see a failure that the step did not have.
        value = values.loaded(stored, f"result of step {step.name!r}")
        is_copy = value is not stored
        return Completion(value, note.at or 0.0, note.signal, note.discarded, is_copy)

    common: dict[str, Any] = {
        "read": read,
        "read_version": read_version,
        "publish": publish,
        "tag": tag,
        "store_large": values.kept_value,
        "seed": f"{record.uuid} {record.attempt}",
        "now": record.submitted or now,
    }
    if workflow.is_async:
        return AsyncProgram(workflow.fn, call.arguments, history, **common)
    return ThreadProgram(workflow.fn, call.arguments, history, on_waiting=on_waiting, **common)


def check_replay(
    call: WorkflowCall, recorded: Iterable[RecordedStep], values: Storage, now: float
) -> None:
    """Call the function of a workflow, and check that it repeats the recorded steps.

    This begins no step and writes nothing.

    :raises NonDeterministicWorkflow: if the function does not repeat them.
    """
    steps = list(recorded)
    history = History(call.record.name, steps)
    content = call.record.meta_value(models.WORKFLOW) or {}
    versions: Mapping[str, int] = content.get(VERSIONS, {})

    def read_version(change: str, newest: int, is_replaying: bool) -> int:
        return versions.get(change, 1 if is_replaying else newest)

    waiting = conditions.Event()
    program = of_call(
        call,
        history,
        waiting.set,
        on_read=lambda record: None,
        read_version=read_version,
        publish=lambda name, value: None,
        tag=lambda tags, is_replaying: None,
        values=values,
        now=now,
    )
    try:
        while program.can_advance:
            program.advance()
            while program.is_computing:
                waiting.wait()
                waiting.clear()
        if program.error is None:
            history.check_end(program.called_count)
    except exceptions.NonDeterministicWorkflow as error:
        program.error = error
    finally:
        program.close()
    if program.error is not None:
        raise program.error
