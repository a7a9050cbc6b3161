"""The forms that fork a flow, and what pages and the API show about forks."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.conftest import admitted, client
from tests.dashboard.forms import send, token_in
from tests.support import fork_flows
from tests.support.fork_flows import FAILING, flow_of
from wbengine.persistence import backends, base, models
from wbengine.persistence._step_notes import StepNote
from wbengine.views import flow_status


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


@pytest.fixture
def failed(store: base.Backend) -> Iterator[str]:
    """UUID of an order whose last step failed."""
    FAILING.add("ship")
    with fork_flows.board_of(store) as board:
        uuid = fork_flows.submit(store, board, fork_flows.order, amount=1, address="here")
        fork_flows.run(store, board)
    FAILING.clear()
    yield uuid


def step_of(flow: models.FlowDetail, position: int) -> str:
    notes = ((record.uuid, StepNote.of(record)) for record in flow)
    return next(uuid for uuid, note in notes if note is not None and note.position == position)


def test_page_of_step_forks_the_flow_from_it(store: base.Backend, failed: str) -> None:
    step = step_of(flow_of(store, failed), 1)
    with client(types.SimpleNamespace(backend=store), allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{failed}/atoms/{step}").text
        assert f'action="/flows/{failed}/fork"' in page and "Run again from" in page
        values = {"form_token": token_in(page), "start": step, "reason": "fixed"}
        assert send(browser, f"/flows/{failed}/fork", values).status_code == 303
        (entry,) = flow_of(store, failed).forks
        assert entry["start"] == "pack"
        assert entry["flow"] in browser.get(f"/flows/{failed}").text
        page = browser.get(f"/flows/{entry['flow']}").text
        assert failed in page and f"Inherited from {failed[:8]}" in page


def test_form_names_the_nearest_step(store: base.Backend, failed: str) -> None:
    with client(types.SimpleNamespace(backend=store), allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{failed}").text
        values = {"form_token": token_in(page), "start": "shipp"}
        answer = send(browser, f"/flows/{failed}/fork", values)
        assert answer.status_code == 404 and "did you mean &#39;ship&#39;" in answer.text


def test_views_contain_forks_and_inherited_steps(store: base.Backend, failed: str) -> None:
    with client(types.SimpleNamespace(backend=store), allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{failed}").text
        values = {"form_token": token_in(page), "start": "failed", "own": "true"}
        assert send(browser, f"/flows/{failed}/fork", values).status_code == 303
    with store.get_connection() as connection:
        original = flow_status.read(connection, failed).to_dict()
        (fork,) = original["forks"]
        view = flow_status.read(connection, fork["flow"]).to_dict()
    assert fork == {"flow": view["uuid"], "start": "ship", "own": True}
    assert original["superseded_by"] == view["uuid"]
    assert view["forked_from"] == {"flow": failed, "start": "ship", "own": True}
    steps = view["atoms"][0]["steps"]["shown"]
    assert [step["inherited"] for step in steps] == [failed, failed]
