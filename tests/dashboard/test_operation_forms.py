"""Forms that pages make from the table of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import site
from tests.dashboard.forms import send, token_in
from tests.dashboard.held import Running
from wbengine.dashboard import _flow_actions, _operation_forms
from wbengine.operations import _operation
from wbengine.operations import _operation as op

CALLS: list[Mapping[str, Any]] = []

_TEXT = Annotated[str, op.Parameter("A text.", {"type": "string", "maxLength": 20})]
_COUNT = Annotated[int | None, op.Parameter("A number.", {"type": "integer", "minimum": 1})]
_STRICT = Annotated[bool, op.Parameter("Check more.", {"type": "boolean"})]
_COLOR = Annotated[str | None, op.Parameter("A color.", {"enum": ["RED", "BLUE"]})]
_VALUE = Annotated[Any, op.Parameter("A value.", {})]


def mark(
    scope: op.Scope,
    flow: op.FlowId,
    text: _TEXT,
    count: _COUNT = None,
    strict: _STRICT = False,
    color: _COLOR = None,
    value: _VALUE = None,
) -> dict[str, Any]:
    """Mark a flow."""
    given = {"flow": flow, "text": text, "count": count, "strict": strict, "color": color}
    CALLS.append({**given, "by": scope.by})
    return {}


@pytest.fixture
def operation(monkeypatch: pytest.MonkeyPatch) -> Iterator[op.Operation]:
    """Add an operation to the table."""
    button = op.Button(notice=f"Marked {story.SCRIPT}.", asks="Really?", is_danger=True)
    monkeypatch.setattr(mark, "__module__", "definitions.flow_mark")
    operation = op.operation(role=op.ADMIN, result={}, button=button)(mark)
    table = {**_operation.table(), operation.name: operation}
    monkeypatch.setattr(_operation, "table", lambda: table)
    _flow_actions.actions.cache_clear()
    CALLS.clear()
    yield operation
    _flow_actions.actions.cache_clear()


def test_new_operation_has_a_form(running: Running, operation: op.Operation) -> None:
    with site(running.kept, "ann") as admin, site(running.kept, "olga") as operator:
        page = admin.get(running.path).text
        assert ">Mark</button>" in page and 'data-confirm="Really?"' in page
        assert 'name="text"' in page and 'maxlength="20" required' in page
        assert 'name="value"' not in page and ">Mark<" not in operator.get(running.path).text
        fields = {"form_token": token_in(page), "text": story.SCRIPT[:20]}
        answer = send(admin, f"{running.path}/mark", {**fields, "count": "3", "color": ""})
        assert answer.status_code == 303
        (call,) = CALLS
        assert {**call, "by": None} == {
            "flow": running.detail.uuid, "text": story.SCRIPT[:20], "count": 3, "strict": False,
            "color": None, "by": None,
        }  # fmt: skip
        assert "ann, admin" in str(call["by"])
        page = admin.get(answer.headers["location"]).text
        assert "Marked " in page and story.SCRIPT not in page
        for wrong in ({"count": "x"}, {"count": "0"}, {"color": "GREEN"}, {"text": "x" * 21}):
            answer = send(admin, f"{running.path}/mark", {**fields, **wrong})
            assert answer.status_code == 400, answer.text
        fields["form_token"] = token_in(operator.get(running.path).text)
        assert send(operator, f"{running.path}/mark", fields).status_code == 403
    assert len(CALLS) == 1


def test_operation_that_needs_an_object_has_no_form() -> None:
    shown = {*_operation_forms.of_subject("flow")}
    assert {"suspend", "cancel", "resume", "retry", "revert", "signal"} <= shown
    assert not {"submit", "delete"} & shown
