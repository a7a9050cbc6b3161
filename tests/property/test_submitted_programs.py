"""Random programs that conductors run, with forks, reverts and kills, compared with a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.property import workflow_programs as programs
from tests.property.submitted_programs import Action, Case, Stage
from tests.support.amounts import amount

pytestmark = pytest.mark.timeout(3600)

_VARIABLE = "WBENGINE_PROGRAMS"
ACTIONS = st.builds(
    Action, st.integers(0, 30), st.sampled_from(["plain", "own", "undo"]), st.booleans()
)
#: Program with five steps: a wait, the fourth, is still incomplete when the last step begins.
_CANCELLED_WAIT = [("run", "work"), ("race", ["short", "short", "cancelled"])]


def _settings(usual: int, thorough: int) -> settings:
    return settings(
        max_examples=amount(usual, thorough, _VARIABLE),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def on(quick: Sequence[tuple[str, str]], slow: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    """Return the mark of tests that run on these stores and engines, on some of them nightly."""
    marked = [pytest.param(*each, marks=pytest.mark.slow) for each in slow]
    return pytest.mark.parametrize(("store", "engine"), [*quick, *marked])


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    programs.clear()
    yield
    programs.JOURNAL.clear()


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "postgresql":
        return str(request.getfixturevalue("postgresql_url"))
    return f"sqlite:///{tmp_path}/flows.db" if store == "sqlite" else "memory://"


@pytest.mark.slow
@on(
    [("memory", "worker-based"), ("sqlite", "serial")],
    [
        ("memory", "serial"), ("sqlite", "worker-based"), ("postgresql", "serial"),
        ("postgresql", "worker-based"),
    ],
)  # fmt: skip
def test_program_that_is_forked_and_reverted_leaves_nothing(
    url: str, engine: str, tmp_path: Path
) -> None:
    stage = Stage(url, tmp_path, engine)

    @_settings(4, 100)
    @given(programs.PROGRAMS, st.sampled_from(sorted(programs.WORKFLOWS)), ACTIONS)
    @example(_CANCELLED_WAIT, "async", Action(2, "plain", False))
    @example(_CANCELLED_WAIT, "async", Action(4, "plain", False))
    def check(program: Any, workflow: str, action: Action) -> None:
        programs.clear()
        case = Case(stage, program, workflow)
        case.run()
        if case.fork_and_run(action) and case.model.error is None:
            case.revert_all(action)
        case.check_each_once()

    with stage.working():
        check()


@pytest.mark.slow
@on(
    [("sqlite", "worker-based"), ("postgresql", "serial")],
    [("sqlite", "serial"), ("postgresql", "worker-based")],
)
def test_killed_program_has_the_effects_of_its_model(url: str, engine: str, tmp_path: Path) -> None:
    """The engine is killed while it runs the flow, the fork, and the reverts of both."""
    stage = Stage(url, tmp_path, engine)
    kills = st.lists(st.integers(1, 90), min_size=3, max_size=3)

    @_settings(3, 60)
    @given(programs.PROGRAMS, st.sampled_from(sorted(programs.WORKFLOWS)), ACTIONS, kills)
    def check(program: Any, workflow: str, action: Action, kills: list[int]) -> None:
        programs.clear()
        case = Case(stage, program, workflow)
        case.run(kills[0])
        if case.fork_and_run(action, kills[1]) and case.model.error is None:
            case.revert_all(action, kills[2])

    with stage.working():
        check()
