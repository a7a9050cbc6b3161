"""Calls of the functions of workflows, for a run or only for a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from wbengine._runtime.workflow_call import WorkflowCall
from wbengine._runtime.workflows.async_program import AsyncProgram
from wbengine._runtime.workflows.history import History
from wbengine._runtime.workflows.program import Completion, Program
from wbengine._runtime.workflows.thread_program import ReplayProgram, ThreadProgram
from wbengine.persistence import _step_notes, models
from wbengine.storage import Storage

__all__ = ["of_call", "replay"]


def of_call(
    call: WorkflowCall,
    history: History,
    on_waiting: Callable[[], object] | None,
    *,
    on_read: Callable[[models.TaskDetail], None],
    read_version: Callable[[str, int, int], int],
    publish: Callable[[str, Any], None],
    tag: Callable[[Mapping[str, Any], bool], None],
    values: Storage,
    now: float,
) -> Program:
    """Return the call of a workflow's function.

    :param on_waiting: as for `ThreadProgram`; None: the call is only a replay.
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

    origin = (record.meta_value(models.WORKFLOW) or {}).get(_step_notes.ORIGIN, {})
    common: dict[str, Any] = {
        "read": read,
        "read_version": read_version,
        "publish": publish,
        "tag": tag,
        "store_large": values.kept_value,
        "seed": _step_notes.seed_of(record.uuid, record.attempt),
        "inherited_seeds": origin.get("seeds", ()),
        "now": origin.get("start") or record.submitted or now,
        "first_signals": (record.meta_value(models.CONTINUED) or {}).get("signals", {}),
    }
    if workflow.is_async:
        # A replay may be debugged, which takes longer than the function may run.
        clock = time.monotonic if on_waiting is not None else lambda: 0.0
        return AsyncProgram(workflow.fn, call.arguments, history, clock=clock, **common)
    if on_waiting is None:
        return ReplayProgram(workflow.fn, call.arguments, history, **common)
    return ThreadProgram(workflow.fn, call.arguments, history, on_waiting=on_waiting, **common)


def replay(
    call: WorkflowCall,
    history: History,
    values: Storage,
    now: float,
    check_tags: Callable[[Mapping[str, Any]], object],
) -> Program:
    """Call the function of a workflow in this thread until it needs a step without a result.

    This begins no step and writes nothing.

    :param check_tags: raises an exception if the workflow must not set these tags.
    :returns: the call, which is closed. `error` is set if the function does not repeat the steps.
    """
    content = call.record.meta_value(models.WORKFLOW) or {}
    versions: dict[str, int] = dict(content.get(_step_notes.VERSIONS, {}))

    def read_version(change: str, newest: int, position: int) -> int:
        return versions.setdefault(change, 1 if history.is_replaying(position) else newest)

    def tag(tags: Mapping[str, Any], is_replaying: bool) -> None:
        check_tags(tags)

    program = of_call(
        call,
        history,
        None,
        on_read=lambda record: None,
        read_version=read_version,
        publish=lambda name, value: None,
        tag=tag,
        values=values,
        now=now,
    )
    try:
        while program.can_advance and program.error is None:
            program.advance()
    finally:
        program.close()
    return program
