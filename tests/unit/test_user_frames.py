"""Tracebacks of failed tasks and factories, reduced to the user's own code."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from wbengine import engines, exceptions, retry, task
from wbengine._introspection import object_names
from wbengine._logs import line_format
from wbengine.patterns import linear_flow
from wbengine.types import _user_frames
from wbengine.types.failure import Failure

HERE = Path(__file__).name


class Fails(task.Task):
    def execute(self) -> None:
        raise ValueError("out of paper")


class Chained(task.Task):
    def execute(self) -> None:
        try:
            dict[str, int]()["paper"]
        except KeyError as error:
            raise ValueError("out of paper") from error


class Refuses(retry.Times):
    def on_failure(self, history: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no decision")


@task.task
def prints() -> None:
    raise ValueError("out of paper")


def error_of(*tasks: task.Task, **options: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        engines.run(linear_flow.Flow("f", **options).add(*tasks))
    return caught.value


def files_of(text: str) -> list[str]:
    """Return the file names in a traceback."""
    lines = [line for line in text.splitlines() if line.startswith("  File ")]
    return [Path(line.split('"')[1]).name for line in lines]


@pytest.mark.parametrize(
    "failing",
    [Fails(), prints(), task.FunctorTask(prints.fn, name="p")],
    ids=["class", "function", "functor"],
)
def test_traceback_of_failed_task_has_only_user_frames(failing: task.Task) -> None:
    error = error_of(failing)
    assert "invocation.py" in files_of("".join(traceback.format_exception(error)))
    text = _user_frames.traceback_text(error)
    assert files_of(text) == [HERE]
    assert text.endswith("ValueError: out of paper\n") and "raise ValueError" in text


def test_each_exception_of_a_chain_has_only_user_frames() -> None:
    text = _user_frames.traceback_text(error_of(Chained()))
    assert set(files_of(text)) == {HERE}
    assert "KeyError: 'paper'" in text and "direct cause" in text


@task.workflow
def fails(steps: Any) -> None:
    raise ValueError("out of paper")


def test_traceback_of_failed_workflow_has_only_user_frames() -> None:
    with pytest.raises(ValueError) as caught:
        engines.run(fails)
    assert files_of(_user_frames.traceback_text(caught.value)) == [HERE]


def test_text_of_stored_failure_has_causes_and_notes_with_user_frames() -> None:
    error = error_of(Chained())
    error.add_note("tray 2")
    stored = Failure.from_dict(Failure.from_exception(error).to_dict())
    stored.belongs_to("elsewhere")
    text = _user_frames.traceback_text(exceptions.WrappedFailure([stored]))
    assert set(files_of(text)) == {HERE}
    assert "KeyError: 'paper'" in text and "direct cause" in text
    assert text.endswith("ValueError: out of paper\ntray 2\n")


def test_traceback_of_failed_retry_has_only_user_frames() -> None:
    text = _user_frames.traceback_text(error_of(Fails(), retry=Refuses(2)))
    assert set(files_of(text)) == {HERE} and "no decision" in text


def test_error_inside_the_engine_keeps_all_frames() -> None:
    with pytest.raises(Exception) as caught:
        object_names.load("no_such_module:flow")
    whole = _user_frames.traceback_text(caught.value)
    assert "object_names.py" in files_of(whole)


def test_stored_traceback_is_reduced_for_any_install_path() -> None:
    text = (
        '  File "/opt/site-packages/wbengine/_calls/invocation.py", line 352, in _perform\n'
        "    value: Any = task.execute(**invocation.arguments)\n"
        '  File "/srv/wbengine/shop.py", line 12, in execute\n'
        "    charge()\n"
        "    ~~~~~~^^\n"
        '  File "/opt/site-packages/requests/api.py", line 3, in get\n'
    )
    reduced = _user_frames.only_user_frames(text)
    assert files_of(reduced) == ["shop.py", "api.py"]
    assert "    ~~~~~~^^\n" in reduced
    of_engine = '  File "/opt/site-packages/wbengine/storage.py", line 1, in get\n    x\n'
    assert _user_frames.only_user_frames(of_engine) == of_engine
    assert _user_frames.only_user_frames("") == ""


def broken_factory() -> None:
    raise RuntimeError("no flow today")


def test_innermost_user_frame_is_the_failing_function() -> None:
    with pytest.raises(RuntimeError) as caught:
        broken_factory()
    place = _user_frames.innermost(caught.value)
    assert place is not None and place.startswith(f"{HERE}, line ")
    assert place.endswith("in broken_factory")


def test_innermost_user_frame_of_rejected_argument_is_the_call() -> None:
    with pytest.raises(ValueError, match="timeout") as caught:
        task.WaitFor("approved", timeout=-1)
    place = _user_frames.innermost(caught.value)
    assert place is not None and place.startswith(HERE)


@pytest.mark.parametrize("all_frames", [False, True])
def test_log_shows_only_user_frames_unless_all_are_requested(all_frames: bool) -> None:
    error = error_of(Fails())
    info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "failed", None, info)
    text = line_format.Lines(all_frames=all_frames).format(record)
    shown = files_of(text.replace("\n    ", "\n"))
    assert (shown == [HERE]) is not all_frames
    assert ("invocation.py" in shown) is all_frames
