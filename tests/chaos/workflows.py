"""Submitted workflows, while conductors, workers, brokers and databases are killed.

A workflow has steps one after another, steps in parallel, steps that can be lost with their worker,
pauses of length 0 and two signals. Every second workflow is a coroutine; a third of the workflows
fail at their end, so that their steps are reverted.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos import audit, tasks
from wbengine import engines, exceptions, states, task
from wbengine.jobs import base as jobs
from wbengine.persistence import base as persistence
from wbengine.persistence._step_notes import StepNote
from wbengine.signals import Signal
from wbengine.steps import AsyncSteps, Steps

SIGNAL = "go"
#: Number of signals that each workflow receives.
SIGNALS = 2
#: Minimum number of executions and reversions of each workflow.
MIN_RUNS = 8


def is_failing(flow: str) -> bool:
    return int(flow.removeprefix("flow")) % 3 == 2


def is_async(flow: str) -> bool:
    return int(flow.removeprefix("flow")) % 2 == 1


def _run(name: str, asked: Any) -> int:
    audit.note(audit.STARTED, name, asked.id, asked.epoch, asked.attempt)
    tasks.rest(name, 0.01, 0.5)
    audit.note(audit.ENDED, name, asked.id, asked.epoch, asked.attempt)
    return tasks.value(name)


class Step(task.Task):
    """Is idempotent: it can run again, as can its reversion."""

    idempotent = True

    def execute(self, name: str) -> int:
        return _run(name, self.request)

    def revert(self, name: str) -> None:
        _run(f"{name}.revert", self.request)


class Once(task.Task):
    """Is lost with its worker."""

    idempotent = False

    def execute(self, name: str) -> int:
        return _run(name, self.request)


@task.workflow(provides="result")
def program(steps: Steps, flow: str) -> list[int]:
    values = []
    for number in range(3):
        values.append(steps.run(Step, f"{flow}.{number}"))
        steps.sleep(0)
    for number in itertools.count():
        try:
            steps.run(Once, f"{flow}.once{number}")
            break
        except exceptions.WorkerLost:
            pass
    values += steps.map(Step, [f"{flow}.map{number}" for number in range(3)], max_in_flight=2)
    values += [steps.wait_for(SIGNAL) for _ in range(SIGNALS)]
    values.append(steps.run(Step, f"{flow}.last"))
    if is_failing(flow):
        raise ValueError(flow)
    return [*values, number]


@task.workflow(provides="result")
async def async_program(steps: AsyncSteps, flow: str) -> list[int]:
    values = []
    for number in range(3):
        values.append(await steps.run(Step, f"{flow}.{number}"))
        await steps.sleep(0)
    for number in itertools.count():
        try:
            await steps.run(Once, f"{flow}.once{number}")
            break
        except exceptions.WorkerLost:
            pass
    labels = [f"{flow}.map{number}" for number in range(3)]
    values += await steps.map(Step, labels, max_in_flight=2)
    values += [await steps.wait_for(SIGNAL) for _ in range(SIGNALS)]
    values.append(await steps.run(Step, f"{flow}.last"))
    if is_failing(flow):
        raise ValueError(flow)
    return [*values, number]


def submit(flows: int, store: persistence.Backend, board: jobs.JobBoard) -> dict[str, str]:
    """Submit the workflows and return their names by uuid."""
    uuids = {}
    for factory, starts_at in ((program, 0), (async_program, 1)):
        names = [f"flow{number}" for number in range(starts_at, flows, 2)]
        inputs = [{"flow": name} for name in names]
        handles = engines.submit_many(factory, inputs, backend=store, board=board)
        uuids.update({handle.id: name for handle, name in zip(handles, names, strict=True)})
    return uuids


def send_signals(uuids: Sequence[str], store: persistence.Backend) -> int:
    """Send all signals of these workflows, in order, as far as the store is reachable.

    :returns: the number of workflows whose signals are stored.
    """
    with contextlib.closing(store.get_connection()) as connection:
        for count, uuid in enumerate(uuids):
            try:
                for number in range(1, SIGNALS + 1):
                    signal = Signal.of(SIGNAL, number, float(number)).numbered(number)
                    connection.put_signal(uuid, signal)
            except exceptions.StorageFailure:
                return count
    return len(uuids)


def judge(
    uuids: Mapping[str, str],
    lines: Sequence[audit.Line],
    connection: persistence.Connection,
    retries: Mapping[str, range],
) -> Iterator[str]:
    """Yield the problems.

    Each workflow must end once, with all effects of its steps, and once more for each retry.
    """
    runs = defaultdict[str, list[audit.Line]](list)
    for line in lines:
        if line.what == audit.STARTED:
            runs[line.name.partition(".")[0]].append(line)
    for uuid, name in uuids.items():
        detail = connection.get_flow_details(uuid)
        wanted = states.REVERTED if is_failing(name) else states.SUCCESS
        ends = [one.state for one in detail.history if one.state in states.FLOW_ENDED]
        allowed = retries.get(name, range(1))
        if {detail.state, *ends} != {wanted} or len(ends) - 1 not in allowed:
            yield f"{name} ({uuid}) is in {detail.state}, and ended in {ends}; retries: {allowed}"
            continue
        attempts = _attempts(detail)
        parts = list(_split(name, runs[name]))
        if not len(attempts) == len(parts) == len(ends):
            counts = f"{len(attempts)} attempts and {len(parts)} series of runs"
            yield f"{name} ended {len(ends)} times in {counts}"
            continue
        for steps, part in zip(attempts, parts, strict=True):
            yield from _judge_steps(name, part, detail, steps)


def _attempts(detail: Any) -> list[list[tuple[Any, StepNote]]]:
    """Return the steps of each attempt of the workflow, the earliest first."""
    found = defaultdict[int, list[tuple[Any, StepNote]]](list)
    for record in detail:
        if (note := StepNote.of(record)) is not None:
            found[note.attempt].append((record, note))
    return [steps for _, steps in sorted(found.items())]


def _split(flow: str, runs: Sequence[audit.Line]) -> Iterator[list[audit.Line]]:
    """Yield the runs of each attempt: one begins after the last reversion of the one before."""
    part: list[audit.Line] = []
    for run in runs:
        if run.name == f"{flow}.0" and any(one.name == f"{flow}.0.revert" for one in part):
            yield part
            part = []
        part.append(run)
    yield part


def _judge_steps(
    flow: str,
    runs: Sequence[audit.Line],
    detail: Any,
    steps: Sequence[tuple[Any, StepNote]],
) -> Iterator[str]:
    count = sum(note.task.endswith(":Once") for _, note in steps)
    labels = [f"{flow}.{word}" for word in ("0", "1", "2", "map0", "map1", "map2", "last")]
    if not is_failing(flow):
        result = [*map(tasks.value, labels[:-1]), 1, 2, tasks.value(labels[-1]), count - 1]
        (workflow,) = (record for record in detail if record.name.endswith("program"))
        if workflow.results != result:
            yield f"{flow} returned {workflow.results!r:.200}, not {result}"
    completed = {
        note.arguments["name"]: note.completed for _, note in steps if note.arguments is not None
    }
    if sorted(completed) != sorted(labels):
        yield f"{flow} has the records of {sorted(completed)}"
        return
    # Each phase begins after the results of the one before are saved.
    undone = sorted(labels, key=lambda label: completed[label] or 0, reverse=True)
    phases = [
        *([label] for label in labels[:3]),
        *([f"{flow}.once{number}"] for number in range(count)),
        labels[3:6],
        labels[6:],
        *([f"{label}.revert"] for label in undone if is_failing(flow)),
    ]
    order = {name: phase for phase, names in enumerate(phases) for name in names}
    furthest = 0
    for run in runs:
        if run.name not in order:
            yield f"{run.name} ran"
        elif order[run.name] < furthest:
            yield f"{run.name} was saved, and ran at {run.at} after a later step"
        else:
            furthest = order[run.name]
    begun = Counter((run.name, run.request, run.epoch) for run in runs)
    for (name, _, epoch), number in begun.items():
        if number > 1:
            yield f"{name} ran {number} times under epoch {epoch}"
    for name in order:
        requests = {request for each, request, _ in begun if each == name}
        epochs = {epoch for each, _, epoch in begun if each == name}
        is_once = ".once" in name
        is_lost = is_once and name != f"{flow}.once{count - 1}"
        if len(requests) > 1 or (is_once and len(epochs) > 1):
            yield f"{name} ran for {len(requests)} requests, under epochs {sorted(epochs)}"
        if not requests and not is_lost:
            yield f"{name} never ran"
