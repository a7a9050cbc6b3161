"""The page that submits a new flow."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.conftest import admitted, allowing, client, refused, site
from tests.dashboard.forms import send, token_in
from tests.support import typed_orders
from wbengine import testing
from wbengine.engines import _allowed
from wbengine.persistence import base

FLOWS = typed_orders.__name__
SHIPPING = f"{FLOWS}:shipping"
ORDER = '{"number": 7, "lines": [{"amount": "1.50"}]}'
REQUIRED = {"inputs:order": ORDER, "inputs:customer": "Ann", "inputs:boxes": "2"}


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    with allowing(FLOWS):
        yield


@pytest.fixture
def browser(store: base.Backend) -> Iterator[TestClient]:
    with client(store, allow_actions=True) as opened:
        yield admitted(opened)


def flows_in(store: base.Backend) -> list[str]:
    with contextlib.closing(store.get_connection()) as connection:
        connection.upgrade()
        return [row.uuid for row in connection.list_flows(limit=10).flows]


def submit(browser: TestClient, factory: str, fields: dict[str, str]) -> Any:
    form = browser.get("/submit", params={"factory": factory}).text
    return send(browser, "/submit", {"form_token": token_in(form), "factory": factory, **fields})


def tag_of(page: str, name: str) -> str:
    """Return the tag of the field of this name."""
    match = re.search(rf'<(?:input|select|textarea)[^>]* name="{re.escape(name)}"[^>]*>', page)
    assert match is not None, f"the page has no field {name}"
    return match[0]


def test_page_has_a_field_for_each_input(browser: TestClient) -> None:
    page = browser.get("/submit", params={"factory": SHIPPING}).text
    for name, parts in {
        "order": ("<textarea", " required"),
        "customer": ('type="text"', " required"),
        "boxes": ('type="number"', 'step="1"', " required"),
        "weight": ('type="text"', 'value="1.50"', "aria-describedby"),
        "insured": ('type="checkbox"', " checked"),
        "speed": ("<select",),
        "day": ('type="date"',),
        "note": ('type="text"', 'value=""'),
        "api_token": ('type="password"',),
        "extra": ("<textarea",),
    }.items():
        tag = tag_of(page, f"inputs:{name}")
        assert all(part in tag for part in parts), tag
        assert (" required" in tag) is (" required" in parts), tag
        label_id = re.search(r' id="([^"]+)"', tag)
        assert label_id is not None
        is_labelled = f'<label for="{label_id[1]}">' in page or "checkbox" in tag
        assert is_labelled, f"{name} has no label"
    assert re.search(r'<option value="&#34;slow&#34;" selected>slow</option>', page)
    assert '<option value="&#34;fast&#34;">fast</option>' in page
    assert "A decimal number" in page and "without an annotation" in page


def test_values_of_the_form_are_converted(browser: TestClient, store: base.Backend) -> None:
    values = {
        **REQUIRED, "inputs:weight": "2.5", "inputs:speed": '"fast"', "inputs:day": "2026-12-01",
        "inputs:note": " now ", "inputs:api_token": "s3cret", "inputs:extra": '{"a": [1.5]}',
        "name": "first order", "priority": "HIGH",
    }  # fmt: skip
    answer = submit(browser, SHIPPING, values)
    assert answer.status_code == 303, answer.text
    (uuid,) = flows_in(store)
    assert answer.headers["location"] == f"/flows/{uuid}?done=submit"
    assert "The flow is submitted." in browser.get(answer.headers["location"]).text
    testing.run_submitted(store)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        assert detail.name == "first order"
        (result,) = [atom.results for atom in detail if atom.name == f"{FLOWS}.shipping"]
    assert str(result[:6]) == (
        "[Order(number=7, lines=[Line(amount=Decimal('1.50'), count=1)]), 'Ann', 2,"
        " Decimal('2.5'), False, <Speed.FAST: 'fast'>]"
    )
    assert str(result[6:]) == ("[datetime.date(2026, 12, 1), ' now ', 's3cret', {'a': [1.5]}]")


def test_unchanged_fields_have_their_defaults(browser: TestClient, store: base.Backend) -> None:
    values = {
        **REQUIRED, "inputs:weight": "1.50", "inputs:insured": "true", "inputs:speed": '"slow"',
        "inputs:day": "", "inputs:note": "", "inputs:api_token": "", "inputs:extra": "",
    }  # fmt: skip
    assert submit(browser, SHIPPING, values).status_code == 303
    testing.run_submitted(store)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(flows_in(store)[0])
    (result,) = [atom.results for atom in detail if atom.name == f"{FLOWS}.shipping"]
    assert str(result[3:]) == (
        "[Decimal('1.50'), True, <Speed.SLOW: 'slow'>, None, None, '', None]"
    )


def fault_at(page: str, name: str) -> str:
    """Return the text that describes a fault of a field."""
    tag = tag_of(page, name)
    assert 'aria-invalid="true"' in tag, tag
    described = re.search(r'aria-describedby="([^"]+)"', tag)
    assert described is not None, tag
    fault = re.search(rf'<ul [^>]*id="{described[1].split()[-1]}">(.*?)</ul>', page, re.S)
    assert fault is not None
    return re.sub("<[^>]+>", " ", fault[1]).replace("&#39;", "'").strip()


@pytest.mark.parametrize(
    ("field", "text", "fault"),
    [
        ("order", '{"number": "7"', "inputs['order']: must be JSON"),
        ("order", '{"number": "7", "lines": []}', "inputs['order'].number: expected int, got '7'"),
        ("customer", "", "inputs['customer']: a value is required"),
        ("boxes", "2.5", "inputs['boxes']: must be a whole number, got '2.5'"),
        ("weight", "heavy", "inputs['weight']: expected Decimal, got 'heavy'"),
        ("speed", '"fats"', "inputs['speed']: expected Speed ('slow', 'fast'), got 'fats'"),
        ("day", "2026-02-30", "inputs['day']: expected date | None, got '2026-02-30'"),
    ],
)
def test_fault_is_beside_its_field(
    browser: TestClient, store: base.Backend, field: str, text: str, fault: str
) -> None:
    values = {**REQUIRED, f"inputs:{field}": text, "inputs:note": "kept"}
    answer = submit(browser, SHIPPING, values)
    assert answer.status_code == 400
    assert fault_at(answer.text, f"inputs:{field}").startswith(fault)
    assert answer.text.count('aria-invalid="true"') == 1
    assert 'value="kept"' in tag_of(answer.text, "inputs:note")
    assert " checked" not in tag_of(answer.text, "inputs:insured")
    assert flows_in(store) == []


def test_secrets_are_not_repeated(browser: TestClient) -> None:
    values = {**REQUIRED, "inputs:boxes": "x", "inputs:api_token": "s3cret-of-ann"}
    answer = submit(browser, SHIPPING, values)
    assert answer.status_code == 400 and "s3cret-of-ann" not in answer.text


def test_flow_of_a_factory_with_arguments_is_submitted(
    browser: TestClient, store: base.Backend
) -> None:
    page = browser.get("/submit", params={"factory": f"{FLOWS}:billing"}).text
    assert "<textarea" in tag_of(page, ":inputs")
    wrong = {"arguments:order": '{"number": "7", "lines": []}', ":inputs": "{}"}
    answer = submit(browser, f"{FLOWS}:billing", wrong)
    assert fault_at(answer.text, "arguments:order").startswith("arguments['order'].number")
    values = {"arguments:order": ORDER, "arguments:speed": '"fast"', ":inputs": '{"text": "b"}'}
    assert submit(browser, f"{FLOWS}:billing", values).status_code == 303
    testing.run_submitted(store)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(flows_in(store)[0])
    assert "b 7 fast" in [atom.results for atom in detail]


@pytest.mark.parametrize(
    ("factory", "status", "text"),
    [
        (f"{FLOWS}:shiping", 400, "did you mean 'shipping'?"),
        ("tests.cli.shop:order", 403, "is not allowed"),
    ],
)
def test_factory_that_cannot_be_used_is_an_error_of_the_page(
    browser: TestClient, store: base.Backend, factory: str, status: int, text: str
) -> None:
    refused(browser.get("/submit", params={"factory": factory}), status, text)
    token = token_in(browser.get("/submit", params={"factory": SHIPPING}).text)
    refused(send(browser, "/submit", {"form_token": token, "factory": factory}), status, text)
    assert flows_in(store) == []


def test_page_without_allowed_flows_says_how_to_allow_some(browser: TestClient) -> None:
    _allowed.set_for_process(None)
    page = browser.get("/submit").text
    assert "WBENGINE_FLOWS" in page and 'name="factory"' not in page


@pytest.mark.parametrize(("user", "is_allowed"), [("victor", False), ("olga", True)])
def test_page_needs_role_operator(store: base.Backend, user: str, is_allowed: bool) -> None:
    with site(store, user) as browser:
        assert ("Start a flow</a>" in browser.get("/").text) is is_allowed
        assert browser.get("/submit").status_code == (200 if is_allowed else 403)
        page = browser.get("/submit", params={"factory": SHIPPING}).text
        token = token_in(page) if is_allowed else "0"
        fields = {"form_token": token, "factory": SHIPPING, **REQUIRED}
        answer = send(browser, "/submit", fields)
        assert answer.status_code == (303 if is_allowed else 403), answer.text
    assert len(flows_in(store)) == is_allowed


def test_form_of_another_session_is_refused(browser: TestClient, store: base.Backend) -> None:
    fields = {"form_token": "0" * 64, "factory": SHIPPING, **REQUIRED}
    assert send(browser, "/submit", fields).status_code == 403
    assert flows_in(store) == []


def test_submission_is_audited(browser: TestClient, audit: Callable[[], list[str]]) -> None:
    submit(browser, SHIPPING, {**REQUIRED, "inputs:boxes": "x"})
    submit(browser, SHIPPING, REQUIRED)
    failed, done = audit()
    assert "submit flow" in failed and "invalid fields" in failed
    assert f"submit flow '{SHIPPING}'" in done and "failed" not in done
