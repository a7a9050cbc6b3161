"""Engine options `timelimit` and `cancel_grace`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from wbengine import engines, exceptions, task
from wbengine._runtime import executors
from wbengine.patterns import linear_flow


class Long(task.Task):
    def execute(self) -> None:
        for _ in range(2000):
            time.sleep(0.005)


class Patient(Long):
    timelimit = (None, 30.0)

    def execute(self) -> None:
        time.sleep(0.2)


@pytest.fixture(params=["serial", "threads", "processes"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with engine_options(request.param, tmp_path, slots=1) as options:
        yield options


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((0.1, None), exceptions.SoftTimeLimitExceeded),
        (0.1, exceptions.TimeLimitExceeded),
        ("0.1,none", exceptions.SoftTimeLimitExceeded),
    ],
    ids=["soft limit", "hard limit", "text"],
)
def test_timelimit_of_engine_applies_to_tasks(
    kind: dict[str, Any], given: Any, error: type[Exception]
) -> None:
    engine = engines.load(linear_flow.Flow("f").add(Long("t")), timelimit=given, **kind)
    with pytest.raises(error):
        engine.run()


def test_timelimit_of_task_overrides_timelimit_of_engine(kind: dict[str, Any]) -> None:
    engines.load(linear_flow.Flow("f").add(Patient("t")), timelimit=(0.05, 0.1), **kind).run()


@pytest.mark.parametrize(
    ("option", "value", "error", "words"),
    [
        ("timelimit", "soon", TypeError, "Option timelimit must be"),
        ("timelimit", (2, 1), ValueError, "soft limit of Option timelimit"),
        ("timelimit", 0, ValueError, "Option timelimit must be more than 0"),
        ("timelimit", "1,2,3", TypeError, "Option timelimit must be"),
        ("cancel_grace", -1, ValueError, "cancel_grace must be a number of 0 or more, got -1"),
        ("cancel_grace", "x", ValueError, "cancel_grace .* got 'x'"),
    ],
    ids=["text", "soft above hard", "zero", "three numbers", "negative grace", "text grace"],
)
def test_invalid_time_options_are_rejected_at_load(
    kind: dict[str, Any], option: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        engines.load(linear_flow.Flow("f").add(Long("t")), **{option: value}, **kind)


@pytest.mark.parametrize("value", [None, "none", "None", 3, "3", 0])
def test_cancel_grace_accepts_none_and_numbers(kind: dict[str, Any], value: Any) -> None:
    engines.load(linear_flow.Flow("f").add(Long("t")), cancel_grace=value, **kind)


def test_timelimit_is_rejected_for_given_executor() -> None:
    made = executors.ThreadTaskExecutor(max_workers=1)
    flow = linear_flow.Flow("f").add(Patient("t"))
    with pytest.raises(ValueError, match="construct it with limit="):
        engines.load(flow, engine="parallel", executor=made, timelimit=1)
    engines.load(flow, engine="parallel", executor=made, timelimit=None).run()
