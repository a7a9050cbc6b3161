"""Conditions that atoms wait for, as values."""

from __future__ import annotations

import pytest

from tests.views import records
from wbengine import states
from wbengine.drawing import _terminal_tree
from wbengine.persistence import _leases, _owners, _pauses, models
from wbengine.persistence._pauses import TaskPause
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import _waiting, flow_status
from wbengine.views._atoms import Waiting
from wbengine.views.redaction import Redactor

T = records.T
NOW = T + 10
LIMIT = "10 at a time"


@pytest.fixture
def flow() -> models.FlowDetail:
    return records.order()[0]


def view(
    flow: models.FlowDetail, *held_back: TaskPause, limit: str | None = None, secret: str = ""
) -> flow_status.FlowView:
    """Return the view of a flow whose tasks are independent."""
    nodes = [OutlineNode("order", FLOW, None)]
    nodes += [
        OutlineNode(name, TASK, 0, f"shop.{name.title()}", limit=limit)
        for name in ("reserve", "capture", "archive")
    ]
    return flow_status.view(
        flow,
        Outline(tuple(nodes), ()),
        _leases.Lease(flow.uuid, str(_owners.new()), 1),
        now=NOW,
        pauses=held_back,
        redactor=Redactor().with_secrets_from({"password": secret}) if secret else None,
    )


def gate(shown: flow_status.FlowView, name: str) -> Waiting | None:
    atom = shown.atom(name)
    assert atom is not None
    return atom.gate


def test_wait_for_signal_is_a_gate_with_its_time_limit(flow: models.FlowDetail) -> None:
    record = records.change(flow, "reserve", state=states.RUNNING)
    record.meta[models.WAITS_FOR] = {"signal": "paid", "since": T, "until": T + 60}
    assert gate(view(flow), "reserve") == Waiting("signal", "paid", T, T + 60)
    record.meta[models.WAITS_FOR]["number"] = 2
    assert gate(view(flow), "reserve") == Waiting("signal", "paid #2", T, T + 60)


def test_retry_delay_is_a_gate_until_the_next_attempt(flow: models.FlowDetail) -> None:
    record = records.change(flow, "reserve", state=states.RETRYING, ended=T + 3)
    record.meta[models.RETRY_AT] = NOW + 5
    assert gate(view(flow), "reserve") == Waiting("retry", "reserve", T + 3, NOW + 5)


def test_eta_is_a_gate_until_the_task_starts(flow: models.FlowDetail) -> None:
    record = records.change(
        flow, "reserve", state=states.RUNNING, submitted=T, started=None, ended=None
    )
    record.meta[models.STARTS_AT] = NOW + 5
    atom = view(flow).atom("reserve")
    assert atom is not None
    assert (atom.gate, atom.shown_state) == (Waiting("start", "reserve", T, NOW + 5), "WAITING")
    record.started = T + 5
    assert gate(view(flow), "reserve") is None


def test_limit_is_a_gate_of_a_pending_task(flow: models.FlowDetail) -> None:
    assert gate(view(flow, limit=LIMIT), "archive") == Waiting("permit", LIMIT)


def test_pause_is_a_gate_and_precedes_the_limit(flow: models.FlowDetail) -> None:
    pause = TaskPause("shop.A*", since=T, until=T + 99)
    shown = view(flow, pause, limit=LIMIT)
    assert gate(shown, "archive") == Waiting("pause", "shop.A*", T, T + 99)


def test_task_that_waits_for_a_worker_has_no_gate(flow: models.FlowDetail) -> None:
    atom = view(flow).atom("reserve")
    assert atom is not None and atom.waiting is not None and atom.gate is None


def test_gate_in_json_has_times_in_iso_format(flow: models.FlowDetail) -> None:
    atoms = view(flow, TaskPause("shop.A*", since=0.0)).to_dict()["atoms"]
    (archive,) = (atom for atom in atoms if atom["name"] == "archive")
    assert archive["gate"] == {
        "kind": "pause",
        "subject": "shop.A*",
        "since": "1970-01-01T00:00:00.000Z",
        "until": None,
    }


def test_tree_shows_the_gate_of_a_pending_task(flow: models.FlowDetail) -> None:
    shown = view(flow, TaskPause("shop.A*", "audit", since=T))
    assert "paused" in _terminal_tree.text(shown.outline, shown)


def test_secret_in_the_name_of_a_signal_is_masked(flow: models.FlowDetail) -> None:
    record = records.change(flow, "reserve", state=states.RUNNING)
    record.meta[models.WAITS_FOR] = {"signal": "paid-hunter2222", "since": T, "until": None}
    atom = view(flow, secret="hunter2222").atom("reserve")
    assert atom is not None and atom.gate is not None
    assert "hunter2222" not in f"{atom.gate} {atom.waiting}"


def test_pause_is_looked_up_once_for_each_pending_task(
    flow: models.FlowDetail, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_types: list[str] = []

    def pause_of(task_type: str, *arguments: object) -> TaskPause | None:
        task_types.append(task_type)
        return _pauses.pause_of(task_type, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(_waiting, "pause_of", pause_of)
    for name in ("reserve", "capture", "archive"):
        records.change(flow, name, state=states.PENDING, attempt=0)
    shown = view(flow, TaskPause("shop.*", since=T))
    assert shown.waiting is not None and "(2 more are waiting)" in shown.waiting
    assert sorted(task_types) == ["shop.Archive", "shop.Capture", "shop.Reserve"]
