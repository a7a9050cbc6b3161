"""`crash_everywhere`: each check finds its fault, and right flows pass."""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import logging
import random
import sys
import threading
from concurrent import futures
from typing import Any

import pytest

from tests.testing.crash_corpus import (
    BANK,
    DEPOT,
    INDEX,
    MAIL,
    MEMORY,
    WORLDS,
    Declined,
    TransferOnce,
    add_to_index,
    charge,
    charge_with_strict_refund,
    charge_without_key,
    checks_of,
    clock_in_body,
    flow_of,
    hold_with_timeout,
    recall,
    refund,
    remember,
    ship,
    trip_in_parallel,
)
from wbengine import exceptions, retry, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.steps import AsyncSteps, Steps
from wbengine.testing import FinishedRun, Report, World, crash_everywhere
from wbengine.testing._crashing import argument_checks, schedules
from wbengine.testing._crashing.outcome import Subject
from wbengine.testing._crashing.schedules import Action, Fault, Moment, Schedule
from wbengine.testing._crashing.simulated_run import simulate


def run(flow: Any, **options: Any) -> Report:
    return crash_everywhere(
        flow, {"order": "7"}, world=WORLDS, **{"budget": 600.0, "max_runs": 300, **options}
    )


@task.task(idempotent=False)
def write_letter(order: str) -> None:
    MAIL.effect(f"letter {order}")


class Reserve(task.Task):
    idempotent = True

    def execute(self, order: str) -> None:
        assert self.request is not None
        BANK.effect(f"{self.name} {order}", idempotency_key=self.request.id)

    def revert(self, order: str, **_: Any) -> None:
        BANK.undo(f"{self.name} {order}", missing_ok=True)


right_flow = flow_of(charge, ship, add_to_index, write_letter)


def right_flow_in_parallel() -> linear_flow.Flow:
    both = unordered_flow.Flow("both").add(Reserve("room"), Reserve("car"))
    return linear_flow.Flow("order", retry=retry.Times(2)).add(both)


@task.task
def charge_month(order: str, month: int) -> str:
    return BANK.effect(f"{month} of {order}", idempotency_key=f"{order}-{month}")


@charge_month.revert(failed=True)
def refund_month(order: str, month: int) -> None:
    BANK.undo(f"{month} of {order}", missing_ok=True)


@task.workflow
def right_continued_workflow(steps: Steps, order: str, month: int = 1) -> int:
    steps.run(charge_month, order, month)
    steps.wait_for("paid", timeout=3600, default=None)
    if month < 3:
        steps.continue_as_new(month=month + 1)
    return month


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "signals"),
    [
        (right_flow, {}),
        (right_flow_in_parallel, {}),
        (hold_with_timeout, {"approved": True}),
        (trip_in_parallel, {}),
        (right_continued_workflow, {"paid": True}),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_right_flow_passes(flow: Any, signals: dict[str, Any], seed: int) -> None:
    report = run(flow, signals=signals, seed=seed, budget=600.0, max_runs=150)
    assert report.ok, report
    assert report.singles_run == report.singles > 30
    assert report.singles_run + report.pairs_run == 150 < report.pairs
    assert BANK.keys == MAIL.keys == []


def test_pairs_are_searched_only_without_findings() -> None:
    assert run(flow_of(charge_without_key)).pairs_run == 0
    # A failed reversion needs two faults: the first one causes it.
    report = run(flow_of(charge, charge_with_refund_once))
    assert report.pairs_run > 0 and len(report.findings[0].schedule.moments) == 2, report


@task.task
def charge_with_refund_once(order: str) -> None:
    BANK.effect(f"fee {order}", idempotency_key=f"fee-{order}")


@charge_with_refund_once.revert(failed=True)
def refund_once(order: str) -> None:
    BANK.undo(f"fee {order}", missing_ok=True)
    MAIL.effect(f"refund of {order}")


@pytest.mark.slow
def test_same_seed_makes_the_same_runs() -> None:
    texts = {str(run(right_flow, seed=3, max_runs=80)).partition(" in ")[0] for _ in range(2)}
    reports = [run(flow_of(charge, charge_with_refund_once), seed=5) for _ in range(2)]
    assert len(texts) == 1
    assert reports[0].runs == reports[1].runs
    assert reports[0].findings[0].schedule == reports[1].findings[0].schedule


def test_own_check_sees_the_worlds_of_each_run() -> None:
    ended: list[FinishedRun] = []

    def paid_if_shipped(run: FinishedRun) -> None:
        ended.append(run)
        assert BANK.has("charge 7") or not DEPOT.has("shipment 7"), "shipped for nothing"

    report = run(flow_of(ship, charge), checks=[paid_if_shipped], max_runs=40)
    assert report.ok, report  # In the end of each run, both exist, or none.
    assert len(ended) == 42 and {run.faults for run in ended} == {True, False}
    assert {run.state for run in ended} == {"SUCCESS", "REVERTED"}

    report = run(flow_of(ship), checks=[paid_if_shipped], max_runs=1)
    assert checks_of(report) == {"paid_if_shipped"}
    assert "shipped for nothing" in str(report)


def test_omitted_check_finds_nothing() -> None:
    assert not run(flow_of(charge_with_strict_refund)).ok
    assert run(flow_of(charge_with_strict_refund), without=["nothing_missing"], max_runs=60).ok


@task.task
def charge_with_request_id(self: task.Task, item: str) -> None:
    assert self.request is not None
    BANK.effect(f"charge {item}", idempotency_key=self.request.id)


@charge_with_request_id.revert(failed=True)
def refund_with_request_id(item: str) -> None:
    BANK.undo(f"charge {item}", missing_ok=True)


@task.workflow
def charges_items(steps: Steps, order: str) -> None:
    steps.run(charge_with_request_id, order)
    steps.map(charge_with_request_id, ["1", "2"])


@task.task(retries=2)
def retried_charge(self: task.Task, order: str) -> None:
    """Each retry has another id, because the bank does not execute a key again after an undo."""
    assert self.request is not None
    BANK.effect(f"charge {order}", idempotency_key=self.request.id)


retried_charge.revert(failed=True)(refund)


def test_value_that_cannot_be_encoded_fails() -> None:
    @task.task(provides="value")
    def make() -> object:
        return object()

    report = crash_everywhere(lambda: linear_flow.Flow("f").add(make()))
    assert checks_of(report) == {"end"} and "NotEncodable" in str(report), report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "serail"}, r"engine must be one of .*did you mean 'serial'"),
        ({"without": ["at_most_onec"]}, r"without must be one of .*did you mean 'at_most_once'"),
        ({"end": "SUCESS"}, r"end must be one of .*did you mean 'SUCCESS'"),
        ({"budget": 0}, "budget and max_runs must be positive"),
        ({"only": "twelve"}, "'twelve' in 'twelve' must be the number of a moment and a fault"),
        ({"only": "12:kil"}, "'12:kil' in '12:kil' must be"),
        ({"only": "999:kill"}, "fault '999:kill' did not occur"),
        ({"only": "0:resend"}, "fault '0:resend' did not occur"),
        ({"only": "approved:late"}, "fault 'approved:late' did not occur"),
        ({"exceptions": {"chrage": [Declined]}}, "exceptions contains 'chrage'.*mean 'charge'"),
        ({"signals": {"aproved": 1}}, "signals contains 'aproved', but the flow ended in SUCCESS"),
    ],
)
def test_bad_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(right_flow, **options)


def test_process_memory_is_lost_with_the_process() -> None:
    MEMORY.append("of the test")
    try:
        run(flow_of(remember, recall), max_runs=20)
        assert MEMORY == ["of the test"]  # What it was before the runs.
    finally:
        MEMORY.clear()


@pytest.mark.filterwarnings("ignore:Workflow:RuntimeWarning")
def test_profiler_of_the_caller_continues() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        report = run(clock_in_body, max_runs=1)
        active: object = sys.getprofile()
        assert active is profiler
    finally:
        profiler.disable()
    assert report.runs == 3
    assert checks_of(run(clock_in_body, max_runs=1)) == {"replayable"}
    assert sys.getprofile() is None


#: Two equal numbers, then two others, and so on: as random results that are equal by chance.
NUMBERS = itertools.count()


@task.task(provides="number")
def draw(order: str) -> int:
    return next(NUMBERS) // 2 % 2


@task.task
def charge_of_number(order: str, number: int) -> None:
    BANK.effect(f"charge {number}", idempotency_key=f"charge-{order}")


@charge_of_number.revert(failed=True)
def refund_of_number(order: str, number: int) -> None:
    BANK.undo(f"charge {number}", missing_ok=True)


def test_random_values_may_be_equal_by_chance() -> None:
    while next(NUMBERS) % 2 == 0:
        pass
    report = run(flow_of(draw, charge_of_number), max_runs=60)
    assert report.ok, report


@task.task
def decline(order: str) -> None:
    raise Declined(order)


@task.workflow
def body_with_own_generator(steps: Steps, order: str) -> int:
    return random.Random(steps.uuid4().int).randint(1, 6)


def test_generator_with_a_recorded_seed_is_replayable() -> None:
    report = run(body_with_own_generator, max_runs=20)
    assert report.ok, report


@task.workflow
def ignores_failed_reverts(steps: Steps, order: str) -> None:
    try:
        with steps.scope():
            steps.run(charge, order)
    except Exception:
        return


@pytest.mark.slow
def test_failed_revert_of_a_scope_is_named() -> None:
    report = run(ignores_failed_reverts, max_runs=2000)
    assert checks_of(report) == {"failed_steps_leave_nothing"}, report
    assert "do not catch its exception around steps.scope()" in str(report)


@pytest.mark.slow
def test_threads_take_turns() -> None:
    with futures.ThreadPoolExecutor(3) as pool:
        for report in pool.map(lambda flow: run(flow, max_runs=80), [right_flow] * 3):
            assert report.ok, report
    assert logging.root.manager.disable == logging.NOTSET
    assert BANK._recorder is None


@pytest.mark.slow
def test_threads_of_killed_workflows_end() -> None:
    before = set(threading.enumerate())
    run(hold_with_timeout, signals={"approved": True}, max_runs=60)
    new_threads = set(threading.enumerate()) - before
    assert [each for each in new_threads if each.name == "workflow"] == []


@pytest.mark.slow
def test_threads_of_earlier_runs_end() -> None:
    counts = []

    def count_threads(run: FinishedRun) -> None:
        counts.append([each.name for each in threading.enumerate()].count("wbengine-leases"))

    run(right_flow, checks=[count_threads], max_runs=300)
    assert len(counts) == 302 and max(counts) < 30


@task.task(idempotent=False)
def charge_with_lock(order: str) -> None:
    BANK.effect("lock")
    try:
        BANK.effect(f"charge {order}")
    finally:
        BANK.undo("lock")


charge_with_lock.revert(failed=True)(refund)  # It keeps the lock.


@task.task(idempotent=False)
def charge_with_bare_except(order: str) -> None:
    try:
        BANK.effect(f"charge {order}")
    except:  # noqa: E722  (as users write it)
        BANK.effect("what a dead process cannot do")


@charge_with_bare_except.revert(failed=True)
def refund_after_bare_except(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)
    BANK.undo("what a dead process cannot do", missing_ok=True)


@pytest.mark.slow
def test_code_of_a_killed_worker_has_no_effects() -> None:
    lock = run(flow_of(charge_with_lock), max_runs=40)
    assert ("undone", "bank: 'lock' remains") in {
        (each.check, each.problem.text[:20]) for each in lock.findings
    }, lock
    report = run(flow_of(charge_with_bare_except), max_runs=60)
    for finding in report.findings:  # Only exceptions lead to that line.
        assert "lose" not in str(finding.schedule) and "kill both" not in str(finding.schedule), (
            report
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": ["bank"]}, "world must be a World, or several, got 'bank'"),
        ({"signals": ["approved"]}, "signals must be values by name, or pairs of both"),
        (
            {"exceptions": {"charge": ValueError}},
            r"exceptions\['charge'\] must be a list of classes",
        ),
        ({"exceptions": {"charge": [int]}}, r"exceptions\['charge'\] must be a list of"),
        ({"checks": [1]}, "checks must be functions, got 1"),
        ({"budget": "10"}, "budget must be a number of seconds, got '10'"),
    ],
)
def test_argument_of_wrong_type_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        crash_everywhere(right_flow, {"order": "7"}, **options)


def test_world_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"world must contain all worlds .* World\('bank'\)"):
        crash_everywhere(right_flow, {"order": "7"}, world=[MAIL, INDEX])


@task.workflow
def waits_twice(steps: Steps, order: str) -> None:
    steps.wait_for("approved", timeout=60, default=None)
    steps.run(charge, order)
    steps.wait_for("approved")


def test_each_signal_of_a_name_is_disturbed() -> None:
    signals = [("approved", 1), ("approved", 2)]
    for fault in ("approved:missing", "approved 2:missing"):
        report = run(waits_twice, signals=signals, only=fault)
        # Without the first signal, the second one ends the first wait.
        assert checks_of(report) == {"ends"}, report


def test_missing_input_is_named() -> None:
    with pytest.raises(exceptions.MissingDependencies, match="order"):
        crash_everywhere(right_flow)


@pytest.mark.slow
def test_flow_that_fails_without_faults_is_a_finding() -> None:
    @task.task
    def misspelled(order: str) -> None:
        BANK.effect(oder)  # type: ignore[name-defined]  # noqa: F821

    def failing() -> linear_flow.Flow:
        return linear_flow.Flow("flow").add(misspelled())

    report = run(failing)
    assert checks_of(report) == {"end"} and "NameError" in str(report), report
    assert run(failing, end="REVERTED").ok


def test_test_without_all_single_faults_is_not_passed() -> None:
    report = run(right_flow, max_runs=3)
    assert report.findings == [] and not report.ok
    assert "the budget was too small" in str(report)


@task.workflow
def rejected(steps: Steps, order: str) -> None:
    steps.run(charge, order)
    if not steps.wait_for("approved", timeout=60):
        raise PermissionError(order)


@task.task(retries=2)
def charge_if_missing(order: str) -> None:
    if not BANK.has(f"charge {order}"):
        BANK.effect(f"charge {order}")


charge_if_missing.revert(failed=True)(refund)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["worker-based", "serial"])
@pytest.mark.parametrize(
    ("flow", "options", "least_pairs"),
    [
        # An interrupted step is repeated with the same request id.
        pytest.param(flow_of(Reserve), {}, 0, id="task with request id"),
        pytest.param(charges_items, {}, 0, id="steps with request ids"),
        pytest.param(flow_of(retried_charge), {}, 0, id="retries with request ids"),
        # The engine is killed before it stores the failure of the first execution.
        pytest.param(flow_of(TransferOnce), {"max_runs": 500}, 500, id="task that asks first"),
        pytest.param(flow_of(charge_if_missing, ship), {"max_runs": 800}, 0, id="asks in retries"),
        # The engine is killed after the operator has reverted a flow with a failed revert again.
        pytest.param(flow_of(charge, decline), {"end": "REVERTED"}, 200, id="reverted again"),
        # The second fault interrupts the reversion that the operator began.
        pytest.param(
            rejected, {"signals": {"approved": False}, "end": "REVERTED", "max_runs": 2000}, 400,
            id="reversion is interrupted",
        ),
    ],
)  # fmt: skip
def test_repeatable_flow_passes(
    flow: Any, options: dict[str, Any], least_pairs: int, engine: str
) -> None:
    report = run(flow, engine=engine, **options)
    assert report.ok and report.singles_run > 10, report
    assert report.pairs_run >= min(least_pairs, report.pairs)


@task.task
def extend(items: list[str]) -> None:
    items.append("x")


@task.task(provides="length")
def measure(items: list[str]) -> int:
    return len(items)


def test_runs_do_not_share_inputs() -> None:
    items = ["a"]
    report = crash_everywhere(flow_of(extend, measure), {"items": items}, max_runs=60)
    assert report.ok and items == ["a"], report


TRIES = World("tries", permanent=True, repeatable=True)


@task.task(retries=1)
def second_try(order: str) -> None:
    is_first = not TRIES.has(order)
    TRIES.effect(order)
    BANK.effect(f"charge {order}")
    if is_first:
        raise ValueError(order)


second_try.revert(failed=True)(refund)


@task.workflow
async def tries_again(steps: AsyncSteps, order: str) -> None:
    await asyncio.gather(steps.run(second_try, order), steps.run(ship, order))


def test_try_may_be_undone_before_steps_beside_it() -> None:
    """The other step has its effect after the failed try, and keeps it."""
    report = crash_everywhere(tries_again, {"order": "7"}, world=[BANK, DEPOT, TRIES], max_runs=1)
    assert report.findings == [], report


@task.workflow
def ship_and_wait(steps: Steps, order: str) -> None:
    steps.run(ship, order)
    steps.wait_for("approved", timeout=60)
    steps.run(add_to_index, order)


@task.workflow
def charge_and_index(steps: Steps, order: str) -> None:
    steps.run(charge, order)
    steps.run(add_to_index, order)


def two_workflows() -> unordered_flow.Flow:
    second = linear_flow.Flow("second").add(charge_and_index(), Reserve("room"))
    return unordered_flow.Flow("both").add(ship_and_wait(), second)


def test_failed_reversion_of_a_workflow_does_not_stop_that_of_another() -> None:
    """A run that halts withdraws the last calls in flight: nothing else wakes it."""
    approved = argument_checks.signals({"approved": True})
    subject = Subject(two_workflows, {"order": "7"}, WORLDS, signals=approved)
    ends = []
    for single in schedules.singles(simulate(subject, Schedule()).trace, []):
        if single.moments[0][1].action is not Action.DEADLINE:
            continue
        trace = simulate(subject, single).trace
        for number in range(single.last + 1, len(trace)):
            if trace[number].moment is Moment.START and trace[number].what.startswith("revert"):
                fails = single.extended(number, Fault(Action.FAIL))
                ends.append(simulate(subject, fails).state)
    assert len(ends) > 10 and set(ends) == {"REVERTED"}
