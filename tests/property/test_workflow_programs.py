"""Random workflow programs, compared with a model, also with crashes at random writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tests.property import workflow_programs as programs
from tests.property.submitted_programs import completions
from tests.support.amounts import amount
from wbengine import engines, exceptions, operations, states
from wbengine._concurrency import crash_points
from wbengine.persistence import backends
from wbengine.persistence._step_notes import StepNote
from wbengine.testing import crash_everywhere

#: Thorough runs of one test take half a minute on an idle machine.
pytestmark = pytest.mark.timeout(3600)

WORKFLOWS = programs.WORKFLOWS

#: Points at which a run may crash.
_POINTS = {
    "storage.before-save", "storage.after-save", "engine.before-submit", "task.after-effect"
}  # fmt: skip

_SETTINGS = settings(
    max_examples=amount(20, 1000, "WBENGINE_PROGRAMS"),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

#: For programs with children, each of which is a flow.
_FEW = settings(_SETTINGS, max_examples=amount(8, 500, "WBENGINE_PROGRAMS"))


#: Abandoned branches, one of which has a child that continues as new and so keeps its effects.
_ABANDONED = [
    ("children", "async", 1, [
        [("abandon", "leave", [[], [("children", "async", None, [[("continue",)]])]])],
    ]),
]  # fmt: skip


class Crash(BaseException):
    """The end of a process."""


class CrashPoints:
    """Raises `Crash` at the n-th point, and at all later writes of the same run."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, name: str) -> None:
        if name in _POINTS and (self._left > 0 or name == "storage.before-save"):
            self._left -= 1
            if self._left <= 0:
                raise Crash(name)


class Case:
    """A program with its model, a store and the engines that run it."""

    def __init__(self, program: Any, workflow: str, kind: str) -> None:
        programs.clear()
        programs.SEND[:] = [self.send]
        self.program = program
        self.workflow = WORKFLOWS[workflow]
        self.kind = kind
        self.model = programs.Model()
        self.model.execute(program)
        self.backend = backends.fetch("memory://")
        self.engine = engines.load(
            self.workflow,
            {"program": programs.program_of(program)},
            engine=kind,
            backend=self.backend,
        )
        for channel in self.model.channels:
            for number in range(self.model.initial(channel)):
                self.engine.signal(channel, number + 1)

    def send(self, uuid: str, channel: str, number: int) -> None:
        """Send the signal with this number, unless a step before a crash has sent it."""
        stored = self.backend.get_connection().signals([uuid]).get(uuid, ())
        if number > sum(signal.name == channel for signal in stored):
            operations.signal(self.backend, uuid, channel, number)

    def close(self) -> None:
        self.backend.close()

    def run(self) -> None:
        """Run the engine to its end; check the result."""
        self.error = None
        try:
            self.engine.run()
        except programs.ERRORS as error:
            self.error = programs.described(error)
        assert self.error == self.model.error
        state = states.REVERTED if self.model.error else states.SUCCESS
        assert self.engine.storage.get_flow_state() == state
        if not self.model.error:
            assert self.engine.storage.fetch("result") == self.model.result

    def run_with_crash(self, point: int) -> bool:
        """Run until the crash point, and load the flow again; return whether it crashed."""
        crash_points.install(CrashPoints(point))
        try:
            self.run()
        except Crash:
            pass
        else:
            return False
        finally:
            crash_points.install(None)
        detail = self.backend.get_connection().get_flow_details(self.engine.storage.flow_uuid)
        self.engine = engines.load(
            self.workflow, flow_detail=detail, engine=self.kind, backend=self.backend
        )
        return True

    def cancel(self) -> None:
        """Cancel the flow at the beginning of its next run; check that nothing is left of it."""
        if self.engine.storage.get_flow_state() in states.FLOW_ENDED:
            return
        self.engine.notifier.register(states.RUNNING, lambda state, details: self.engine.cancel())
        with contextlib.suppress(exceptions.Cancelled, *programs.ERRORS):
            self.engine.run()
        if self.engine.storage.get_flow_state() == states.SUCCESS:
            return
        assert self.engine.storage.get_flow_state() == states.REVERTED
        self._check_nothing_left()

    def _check_nothing_left(self) -> None:
        unresolved = _unresolved(programs.EFFECTS)
        left = [key for key, what in unresolved.items() if what == "do"]
        assert all(map(self.model.is_final, left)), (left, programs.EFFECTS)

    def undo(self, point: int) -> None:
        """Revert the complete flow, with a crash; check that nothing is left of it."""
        uuid = self.engine.storage.flow_uuid
        revert, resume = operations.revert, operations.resume
        crash_points.install(CrashPoints(point))
        try:
            with contextlib.suppress(Crash):
                revert(self.backend, uuid, engine=self.kind).run()
        finally:
            crash_points.install(None)
        state = operations.find(self.backend, uuid).state
        if state != states.REVERTED:
            again = revert if state == states.SUCCESS else resume
            again(self.backend, uuid, engine=self.kind).run()
        assert operations.find(self.backend, uuid).state == states.REVERTED
        self._check_nothing_left()

    def check_order(self) -> None:
        """Check that the latest completion was undone first, unless a part was undone alone."""
        has_scopes = not {"scope", "abandon"}.isdisjoint(programs.kinds(self.program))
        if has_scopes or self.model.failed:
            return
        completed = completions(self.backend.get_connection(), self.engine.storage.flow_uuid)
        undone = [completed[key] for what, key in programs.EFFECTS if what == "undo"]
        assert undone == sorted(undone, reverse=True)

    def complete_steps(self) -> Iterator[tuple[str, int]]:
        """Return the names of complete steps and how often they were executed."""
        connection = self.backend.get_connection()
        for record in connection.get_flow_details(self.engine.storage.flow_uuid):
            note = StepNote.of(record)
            if note is not None and note.completed is not None:
                yield record.name, record.attempt - record.reversions


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_program_has_the_results_and_effects_of_its_model(workflow: str, kind: str) -> None:
    @_FEW
    @given(programs.PROGRAMS)
    @example(_ABANDONED)
    def check(program: Any) -> None:
        case = Case(program, workflow, kind)
        case.run()
        case.check_order()
        if programs.is_ordered(program):
            assert case.model.effects == programs.EFFECTS
        effects, left = _without_left(programs.EFFECTS, case.model)
        assert sorted(effects) == sorted(case.model.effects)
        _check_left(left, case.model)
        case.close()

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_crashed_program_has_the_results_of_its_model(workflow: str, kind: str) -> None:
    @_SETTINGS
    @given(programs.CHILDLESS, st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def check(program: Any, points: list[int]) -> None:
        case = Case(program, workflow, kind)
        for point in points:
            before = dict(case.complete_steps())
            has_crashed = case.run_with_crash(point)
            after = dict(case.complete_steps())
            # An attempt that continued as new has no records.
            repeated = [name for name, runs in before.items() if after.get(name, runs) != runs]
            assert not repeated
            if not has_crashed:
                break
        else:
            case.run()
        _check_effects(program, case.model)
        case.close()

    check()


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_complete_program_that_is_reverted_leaves_nothing(workflow: str, kind: str) -> None:
    @_FEW
    @given(programs.PROGRAMS, st.integers(1, 40))
    def check(program: Any, point: int) -> None:
        case = Case(program, workflow, kind)
        case.run()
        if not case.model.error:
            case.undo(point)
            case.check_order()
        case.close()

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_crashed_program_that_is_cancelled_leaves_nothing(workflow: str, kind: str) -> None:
    @_SETTINGS
    @given(programs.CHILDLESS, st.integers(1, 40))
    def check(program: Any, point: int) -> None:
        case = Case(program, workflow, kind)
        if case.run_with_crash(point):
            case.cancel()
        case.close()

    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workflow", "kind"),
    [
        ("plain", "worker-based"),
        ("async", "serial"),
        pytest.param("plain", "serial", marks=pytest.mark.slow),
        pytest.param("async", "worker-based", marks=pytest.mark.slow),
    ],
)
def test_program_with_any_fault_keeps_its_promises(workflow: str, kind: str) -> None:
    """It undoes all if it is cancelled, and else has the effects of a run without the fault."""
    programs.SEND[:] = [lambda uuid, channel, number: None]

    @settings(_SETTINGS, max_examples=amount(2, 100, "WBENGINE_PROGRAMS"))
    @given(programs.PROGRAMS)
    def check(program: Any) -> None:
        # A detached child continues if its parent is cancelled.
        left_out = {"wait", "race", "post", "detached"}
        assume(left_out.isdisjoint(programs.kinds(program)))
        programs.clear()
        model = programs.Model()
        model.execute(program)
        assume(not model.final)  # A cancellation would leave these effects.
        report = crash_everywhere(
            WORKFLOWS[workflow],
            {"program": programs.program_of(program)},
            world=[programs.OUTSIDE, programs.TRIES],
            end=states.REVERTED if model.error else states.SUCCESS,
            engine=kind,
            budget=600.0,
            max_runs=40,
            # Programs ignore failed steps, and have parallel branches without an order.
            without=["failed_steps_leave_nothing", "undone_in_order"],
        )
        assert not report.findings, report

    check()


Effects = list[tuple[str, str]]


def _without_left(effects: Effects, model: programs.Model) -> tuple[Effects, Effects]:
    """Separate the effects of steps for which the program does not wait."""
    return (
        [effect for effect in effects if not model.is_left(effect[1])],
        [effect for effect in effects if model.is_left(effect[1])],
    )


def _check_left(effects: Effects, model: programs.Model) -> None:
    """Check that steps for which nothing waits are undone if the program or their scope fails."""
    for key, what in _unresolved(effects).items():
        assert what != "do" or model.may_stay(key), (key, effects)


def _check_effects(program: Any, model: programs.Model) -> None:
    """Compare the effects: a crash may repeat the latest ones."""
    all_effects, left = _without_left(programs.EFFECTS, model)
    _check_left(left, model)
    effects, expected = _lasting(all_effects), _lasting(model.effects)
    assert set(effects) == set(expected)
    assert _unresolved(effects) == _unresolved(expected)
    if programs.is_ordered(program):
        assert _order(effects) == _order(expected)


def _lasting(effects: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the effects without those before a retry: after a crash, the first try may succeed."""
    return [(what, key) for what, key in effects if what != "reset"]


def _unresolved(effects: list[tuple[str, str]]) -> dict[str, str]:
    """Return the latest effect for each key."""
    return {key: what for what, key in effects}


def _order(effects: list[tuple[str, str]]) -> list[list[str]]:
    """Return the order of the first executions, and of the last reversions."""
    executed = dict.fromkeys(key for what, key in effects if what in {"do", "note"})
    undone = dict.fromkeys(key for what, key in reversed(effects) if what == "undo")
    return [list(executed), list(undone)]
