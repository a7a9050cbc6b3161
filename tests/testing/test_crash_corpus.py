"""`crash_everywhere` finds the faults of the crash corpus, and nothing in its right programs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testing import crash_corpus
from tests.testing.crash_corpus import FAULTY, INPUTS, RIGHT, WORLDS, Program, checks_of
from wbengine import engines
from wbengine.testing import Report, crash_everywhere

PROGRAMS = {**FAULTY, **RIGHT}

pytestmark = pytest.mark.filterwarnings("ignore:Workflow:RuntimeWarning")


@pytest.fixture(autouse=True)
def empty_worlds() -> Iterator[None]:
    """Clear the worlds: other tests use them, and expect that nothing remains in them."""
    yield
    for world in WORLDS:
        world.clear()


def run(program: Program, **options: Any) -> Report:
    crash_corpus.forget()
    given: dict[str, Any] = {"signals": program.signals, "exceptions": program.exceptions}
    return crash_everywhere(
        program.flow, INPUTS, world=WORLDS, budget=600.0, max_runs=120, **given, **options
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_without_faults_succeeds(name: str) -> None:
    program = PROGRAMS[name]
    crash_corpus.forget()
    flow = program.flow() if inspect.isfunction(program.flow) else program.flow
    engine = engines.load(flow, inputs=INPUTS, backend="memory://")
    for signal, value in program.signals.items():
        engine.signal(signal, value)
    engine.run()
    assert engine.storage.get_flow_state() == "SUCCESS"


def faults() -> Iterator[Any]:
    """Yield the programs with a fault that a check finds. Two of each check are not slow."""
    counts: Counter[str] = Counter()
    for name, program in FAULTY.items():
        if program.check is not None:
            counts[program.check] += 1
            is_slow = counts[program.check] > 2
            yield pytest.param(name, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize("name", list(faults()))
def test_fault_is_found(name: str) -> None:
    program = FAULTY[name]
    report = run(program)
    assert program.check in checks_of(report), report
    # The text names the fault, and the schedule repeats it.
    finding = next(each for each in report.findings if each.check == program.check)
    assert finding.problem.text in str(report)
    repeated = run(program, only=str(finding.schedule))
    assert program.check in checks_of(repeated), repeated
    assert repeated.runs == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if not program.check])
def test_program_without_a_fault_that_checks_find_passes(name: str) -> None:
    report = run(PROGRAMS[name])
    assert report.ok, report
    assert report.singles_run == report.singles
