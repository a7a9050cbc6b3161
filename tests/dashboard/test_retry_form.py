"""The forms that retry a flow with other values or fork it, and how forks are shown."""

from __future__ import annotations

import re

import pytest

from tests.dashboard.conftest import admitted, client, refused, site
from tests.dashboard.forms import send, token_in
from tests.support import conducted, fork_flows, requested
from tests.support.fork_flows import FAILING, flow_of
from tests.support.waiting import until
from wbengine import engines, operations
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards
from wbengine.persistence import base, models
from wbengine.persistence._step_notes import StepNote
from wbengine.views import flow_status

PURCHASE = "tests.cli.payments:purchase"
LONG_PURCHASE = "tests.cli.payments:long_purchase"


def failed(store: base.Backend, factory: str = PURCHASE, **options: object) -> str:
    handle = engines.submit(factory, backend=store, inputs={"order": 1, "card": "bad"})
    with boards.backend("b", "sql", persistence=store) as board:
        conductor = conductors.fetch(
            "nonblocking", "c", board, persistence=store, engine_options=options
        )
        with conducted.running(conductor):
            until(lambda: board.job_count == 0)
    return handle.id


def test_form_requests_a_retry_with_other_values(store: base.Backend) -> None:
    uuid = failed(store, never_resolve=True)
    with client(store, allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{uuid}").text
        assert f'href="/flows/{uuid}/retry">Retry with other values</a>' in page
        form = browser.get(f"/flows/{uuid}/retry").text
        # A complete task has used the order.
        assert 'name="input:card"' in form and 'name="input:order"' not in form
        assert 'name="result:quote"' in form and 'name="result:pay"' not in form
        assert requested.command_of(store, uuid) is None
        token = {"form_token": token_in(form)}
        for values, code, text in (
            ({"input:card": "4111 '"}, 400, "The value of input 'card' must be JSON"),
            ({"input:order": "2"}, 409, "task 'quote' has used it"),
            ({"input:crad": "2"}, 404, "has no input 'crad'"),
        ):
            refused(send(browser, f"/flows/{uuid}/retry", {**token, **values}), code, text)
            assert requested.command_of(store, uuid) is None
        values = {"input:card": '"a"', "result:quote": "7", "reason": " typo "}
        assert send(browser, f"/flows/{uuid}/retry", {**token, **values}).status_code == 303
        form = browser.get(f"/flows/{uuid}/retry").text
        assert "cannot be retried in its present state" in form and 'name="reason"' not in form
    command = requested.command_of(store, uuid)
    assert command is not None and command.edits is not None
    assert (command.reason, command.by) == ("typo", "dashboard (192.0.2.5)")
    edits = operations.Edits.from_dict(command.edits, uuid)
    assert edits == operations.Edits({"card": "a"}, {"quote": 7})


def test_form_of_a_reverted_flow_contains_all_inputs_and_no_results(store: base.Backend) -> None:
    uuid = failed(store)
    with client(store, allow_actions=True) as browser:
        admitted(browser)
        form = browser.get(f"/flows/{uuid}/retry").text
    assert 'name="input:card"' in form and 'name="input:order"' in form
    assert "now: " in form
    assert 'name="result:' not in form


def test_form_of_a_flow_with_many_tasks_is_accepted(store: base.Backend) -> None:
    uuid = failed(store, LONG_PURCHASE, never_resolve=True)
    with client(store, allow_actions=True) as browser:
        admitted(browser)
        form = browser.get(f"/flows/{uuid}/retry").text
        assert "the first 100 of 121 results" in form
        # A browser sends the empty fields, too.
        fields = dict.fromkeys(re.findall(r'name="((?:input|result):[^"]+)"', form), "")
        assert len(fields) == 101
        values = {"form_token": token_in(form), **fields, "input:card": '"a"'}
        assert send(browser, f"/flows/{uuid}/retry", values).status_code == 303
    command = requested.command_of(store, uuid)
    assert command is not None and command.edits is not None
    assert operations.Edits.from_dict(command.edits, uuid) == operations.Edits({"card": "a"})


def test_form_needs_allowed_actions(store: base.Backend) -> None:
    uuid = failed(store)
    with client(store) as browser:
        admitted(browser)
        assert "The dashboard is read-only" in browser.get(f"/flows/{uuid}/retry").text
        assert "Retry with other values</a>" not in browser.get(f"/flows/{uuid}").text


@pytest.mark.parametrize(("user", "is_allowed"), [("olga", False), ("edith", True), ("ann", True)])
def test_other_values_need_role_editor(store: base.Backend, user: str, is_allowed: bool) -> None:
    uuid = failed(store, never_resolve=True)
    with site(store, user) as browser:
        page = browser.get(f"/flows/{uuid}").text
        assert ("Retry with other values" in page) is is_allowed
        form = browser.get(f"/flows/{uuid}/retry").text
        assert ("needs role editor" in form) is not is_allowed
        fields = {"form_token": token_in(page), "input:card": '"4111"'}
        answer = send(browser, f"/flows/{uuid}/retry", fields)
        assert answer.status_code == (303 if is_allowed else 403), answer.text
        assert (requested.command_of(store, uuid) is not None) is is_allowed


@pytest.fixture
def failed_order(store: base.Backend) -> str:
    """UUID of an order whose last step failed."""
    FAILING.add("ship")
    with fork_flows.board_of(store) as board:
        uuid = fork_flows.submit(store, board, fork_flows.order, amount=1, address="here")
        fork_flows.run(store, board)
    FAILING.clear()
    return uuid


def step_of(flow: models.FlowDetail, position: int) -> str:
    notes = ((record.uuid, StepNote.of(record)) for record in flow)
    return next(uuid for uuid, note in notes if note is not None and note.position == position)


def test_page_of_step_forks_the_flow_from_it(store: base.Backend, failed_order: str) -> None:
    step = step_of(flow_of(store, failed_order), 1)
    with client(store, allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{failed_order}/atoms/{step}").text
        assert f'action="/flows/{failed_order}/fork"' in page and "Run again from" in page
        values = {"form_token": token_in(page), "start": step, "reason": "fixed"}
        assert send(browser, f"/flows/{failed_order}/fork", values).status_code == 303
        (entry,) = flow_of(store, failed_order).forks
        assert entry["start"] == "pack"
        assert entry["flow"] in browser.get(f"/flows/{failed_order}").text
        page = browser.get(f"/flows/{entry['flow']}").text
        assert failed_order in page and f"Inherited from {failed_order[:8]}" in page


def test_form_names_the_nearest_step(store: base.Backend, failed_order: str) -> None:
    with client(store, allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{failed_order}").text
        values = {"form_token": token_in(page), "start": "shipp"}
        refused(send(browser, f"/flows/{failed_order}/fork", values), 404, "did you mean 'ship'")


def test_views_contain_forks_and_inherited_steps(store: base.Backend, failed_order: str) -> None:
    with client(store, allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{failed_order}").text
        values = {"form_token": token_in(page), "start": "failed", "own": "true"}
        assert send(browser, f"/flows/{failed_order}/fork", values).status_code == 303
    with store.get_connection() as connection:
        original = flow_status.read(connection, failed_order).to_dict()
        (fork,) = original["forks"]
        view = flow_status.read(connection, fork["flow"]).to_dict()
    assert fork == {"flow": view["uuid"], "start": "ship", "own": True}
    assert original["superseded_by"] == view["uuid"]
    assert view["forked_from"] == {"flow": failed_order, "start": "ship", "own": True}
    steps = view["atoms"][0]["steps"]["shown"]
    assert [step["inherited"] for step in steps] == [failed_order, failed_order]
