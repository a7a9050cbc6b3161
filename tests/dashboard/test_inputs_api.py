"""The JSON schema of the inputs of a flow in the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import FILE, TOKENS, client
from wbengine.dashboard import parse_users
from wbengine.engines import _allowed

FLOWS = "tests.support.typed_orders"


@pytest.fixture
def allowed() -> Iterator[None]:
    _allowed.set_for_process([FLOWS])
    yield
    _allowed.set_for_process(None)


def get(factory: str | None) -> Any:
    browser = client(story.Kept(), token=None, users=parse_users(FILE))
    headers = {"authorization": f"Bearer {TOKENS['victor']}"}
    query = {} if factory is None else {"factory": factory}
    return browser.get("/api/v1/inputs", params=query, headers=headers)


def test_viewer_reads_the_schema_of_an_allowed_flow(allowed: None) -> None:
    answer = get(f"{FLOWS}:checkout")
    assert answer.status_code == 200
    data = answer.json()
    assert data["factory"] == f"{FLOWS}:checkout"
    assert data["inputs"]["required"] == ["order"]
    assert data["arguments"] is None
    assert f"{FLOWS}.Order" in data["inputs"]["$defs"]


def test_arguments_of_a_factory_are_shown(allowed: None) -> None:
    data = get(f"{FLOWS}:billing").json()
    assert (data["inputs"], data["arguments"]["required"]) == (None, ["order"])
    data = get(f"{FLOWS}:reporting").json()
    assert (data["inputs"]["required"], data["arguments"]["required"]) == (["number"], [])


@pytest.mark.parametrize(
    ("factory", "status"),
    [("tests.cli.shop:order", 403), (f"{FLOWS}:chekout", 400), ("", 400), (None, 400)],
)
def test_other_factories_are_errors(allowed: None, factory: str | None, status: int) -> None:
    answer = get(factory)
    assert answer.status_code == status, answer.text


def test_server_without_allowed_flows_reads_none() -> None:
    assert get(f"{FLOWS}:checkout").status_code == 403
