"""What becomes of a chord's body when the last task of its group has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from wbengine.interop.celery.canvas import chords
from wbengine.interop.celery.protocol import errors, results
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import Send

NOW = 1_700_000_000.0
BODY: dict[str, Any] = {
    "task": "proj.body",
    "options": {
        "task_id": "body",
        "link_error": [{"task": "proj.sorry"}],
        "chain": [{"task": "proj.after", "options": {"task_id": "after"}}],
    },
}
WRONG = errors.describe("ValueError", "builtins", "no")


def finished(parts: Sequence[chords.Part], body: Mapping[str, Any] = BODY) -> Any:
    message = TaskMessage("proj.part", "last", group="g", chord=body, root_id="r", reply_to="q")
    part = results.ChordPart("g", 1, "last", "SUCCESS", 2, body, "msgpack")
    return chords.finished(message, parts, NOW, lambda: "new", part)


def test_the_body_is_called_with_all_results_in_order() -> None:
    fallen, steps = finished([("a", "SUCCESS", 1), ("last", "SUCCESS", 2)])
    (step,) = steps
    assert isinstance(step, Send) and fallen == []
    assert (step.message.task, step.message.id, list(step.message.args)) == (
        "proj.body", "body", [[1, 2]]
    )  # fmt: skip
    assert (step.message.root_id, step.message.parent_id) == ("r", "last")


@pytest.mark.parametrize("state", ["FAILURE", "REVOKED"])
def test_if_a_part_failed_it_is_not(state: str) -> None:
    fallen, steps = finished([("a", "SUCCESS", 1), ("b", state, WRONG), ("last", "SUCCESS", 2)])
    (step,) = steps
    assert (step.message.task, list(step.message.args)) == ("proj.sorry", ["body"])
    assert {one.result.id for one in fallen} == {"body", "after"}
    for one in fallen:
        assert one.result.state == "FAILURE" and one.result.serializer == "msgpack"
        assert one.result.value == errors.describe(
            "ChordError", "celery.exceptions", "Dependency b raised ValueError('no')"
        )
        assert one.result.traceback.endswith("ChordError: Dependency b raised ValueError('no')\n")


@pytest.mark.parametrize("value", ["text", None, {"no": "exception"}, [1], 5])
def test_whatever_another_worker_says_of_its_part(value: Any) -> None:
    fallen, _ = finished([("b", "FAILURE", value)])
    assert "Dependency b raised Exception(" in fallen[0].result.value["exc_message"][0]


def test_a_body_that_cannot_be_called_fails(caplog: pytest.LogCaptureFixture) -> None:
    body = {"task": "proj.body", "args": 5, "options": {"task_id": "body"}}
    fallen, steps = finished([("a", "SUCCESS", 1)], body)
    assert [one.result.id for one in fallen] == ["body"] and steps == []
    assert "Callback error" in fallen[0].result.value["exc_message"][0]
    assert finished([("a", "SUCCESS", 1)], {"task": 5}) == ([], [])
    assert "cannot be read" in caplog.text
