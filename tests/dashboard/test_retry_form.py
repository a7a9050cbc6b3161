"""The form that retries a submitted flow with other inputs and results."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.conftest import admitted, client, site
from tests.dashboard.forms import send, token_in
from tests.support import conducted, requested
from tests.support.waiting import until
from wbengine import engines, operations
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards
from wbengine.persistence import backends, base

PURCHASE = "tests.cli.payments:purchase"
LONG_PURCHASE = "tests.cli.payments:long_purchase"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


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
    with client(types.SimpleNamespace(backend=store), allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{uuid}").text
        assert f'href="/flows/{uuid}/retry">Retry with other values</a>' in page
        form = browser.get(f"/flows/{uuid}/retry").text
        # A complete task has used the order.
        assert 'name="input:card"' in form and 'name="input:order"' not in form
        assert 'name="result:quote"' in form and 'name="result:pay"' not in form
        assert requested.command_of(store, uuid) is None
        token = {"form_token": token_in(form)}
        for values, code, text in (
            ({"input:card": "4111 '"}, 400, "The value of input &#39;card&#39; must be JSON"),
            ({"input:order": "2"}, 409, "task &#39;quote&#39; has used it"),
            ({"input:crad": "2"}, 404, "has no input &#39;crad&#39;"),
        ):
            answer = send(browser, f"/flows/{uuid}/retry", {**token, **values})
            assert answer.status_code == code and text in answer.text
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
    with client(types.SimpleNamespace(backend=store), allow_actions=True) as browser:
        admitted(browser)
        form = browser.get(f"/flows/{uuid}/retry").text
    assert 'name="input:card"' in form and 'name="input:order"' in form
    assert "now: " in form
    assert 'name="result:' not in form


def test_form_of_a_flow_with_many_tasks_is_accepted(store: base.Backend) -> None:
    uuid = failed(store, LONG_PURCHASE, never_resolve=True)
    with client(types.SimpleNamespace(backend=store), allow_actions=True) as browser:
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
    with client(types.SimpleNamespace(backend=store)) as browser:
        admitted(browser)
        assert "The dashboard is read-only" in browser.get(f"/flows/{uuid}/retry").text
        assert "Retry with other values</a>" not in browser.get(f"/flows/{uuid}").text


@pytest.mark.parametrize(("user", "is_allowed"), [("olga", False), ("edith", True), ("ann", True)])
def test_other_values_need_role_editor(store: base.Backend, user: str, is_allowed: bool) -> None:
    uuid = failed(store, never_resolve=True)
    with site(types.SimpleNamespace(backend=store), user) as browser:
        page = browser.get(f"/flows/{uuid}").text
        assert ("Retry with other values" in page) is is_allowed
        form = browser.get(f"/flows/{uuid}/retry").text
        assert ("needs role editor" in form) is not is_allowed
        fields = {"form_token": token_in(page), "input:card": '"4111"'}
        answer = send(browser, f"/flows/{uuid}/retry", fields)
        assert answer.status_code == (303 if is_allowed else 403), answer.text
        assert (requested.command_of(store, uuid) is not None) is is_allowed
