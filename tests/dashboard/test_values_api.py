"""Values, exports and input schemas of flows in the API: who reads them, pages, masked secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import FILE, TOKENS, allowing, bearer, client, refused
from wbengine import exceptions, operations, task
from wbengine._limits import account_stores
from wbengine._limits.permit_sharing import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.dashboard import parse_users
from wbengine.patterns import linear_flow
from wbengine.persistence import base


class Order(task.Task):
    default_provides = "order"

    def execute(self, customer: str, api_key: str) -> Any:
        return {"customer": customer, "token": api_key, "lines": [1, 2], "note": f"uses {api_key}"}


class Keys(task.Task):
    """A task with a secret that is masked only because of its name."""

    def execute(self) -> str:
        return "s3cr"


class Fails(task.Task):
    def execute(self) -> None:
        raise RuntimeError("out of stock")


class Shop:
    """A flow with values, and a dashboard with and without them."""

    def __init__(self) -> None:
        self.kept = story.Kept()
        flow = linear_flow.Flow("order").add(
            Order("place"), Keys("make_password"), *(story.Fine(f"step-{n}") for n in range(3))
        )
        inputs = {"customer": story.SCRIPT, "api_key": story.CANARY}
        self.uuid = self.kept.run("order", flow, inputs)
        users = parse_users(FILE)
        self.with_values = client(self.kept, token=None, users=users, show_values=True)
        self.without = client(self.kept, token=None, users=users)

    def get(self, path: str, user: str = "olga", browser: TestClient | None = None) -> Any:
        url = f"/api/v1/flows/{self.uuid}/{path}"
        return (browser or self.with_values).get(url, headers=bearer(TOKENS[user]))


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_values_have_masked_secrets(shop: Shop) -> None:
    answer = shop.get("values")
    data = answer.json()
    assert data["schema"] == "wbengine/flow-values/1" and data["after"] is None
    assert data["inputs"] == {"api_key": "***", "customer": story.SCRIPT}
    place, password, *others = data["values"]
    assert place == {
        "uuid": place["uuid"], "name": "place", "state": "SUCCESS",
        "value": {
            "customer": story.SCRIPT, "token": "***", "lines": [1, 2], "note": "uses ***",
        },
    }  # fmt: skip
    assert (password["name"], password["value"]) == ("make_password", "***")
    assert [each["value"] for each in others] == [f"fine {story.SCRIPT}"] * 3
    assert story.CANARY not in answer.text


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_values_are_listed_in_pages(shop: Shop, limit: int) -> None:
    names, after = list[str](), ""
    while after is not None:
        page = shop.get(f"values?limit={limit}&after={after}").json()
        assert len(page["values"]) <= limit
        names += [each["name"] for each in page["values"]]
        after = page["after"]
    assert names == ["place", "make_password", "step-0", "step-1", "step-2"]


def test_values_of_one_task(shop: Shop) -> None:
    (found,) = shop.get("values?task=step-1").json()["values"]
    assert shop.get(f"values?task={found['uuid']}").json()["values"] == [found]
    assert shop.get("values?task=nothing").status_code == 404
    refused(shop.get("values?after=nothing"), 400, "after must be the uuid of a task")
    assert shop.get("values?limit=501").status_code == 400


def test_visitors_of_a_dashboard_with_values_read_them(shop: Shop) -> None:
    assert shop.get("values", "victor").json() == shop.get("values", "olga").json()
    refused(shop.get("values", browser=shop.without), 403, "--show-values")


def test_export_has_all_that_the_pages_show(shop: Shop) -> None:
    answer = shop.get("export")
    data = answer.json()
    assert data["schema"] == "wbengine/flow-report/1" and data["uuid"] == shop.uuid
    names = [atom["name"] for atom in data["flow"]["atoms"]]
    assert names == [each["name"] for each in data["values"]]
    assert data["values"] == shop.get("values").json()["values"]
    assert data["events"] == shop.get("events").json()["events"] and data["events_after"] is None
    assert data["logs"] == shop.get("logs").json()["lines"]
    assert story.CANARY not in answer.text
    with pytest.raises(exceptions.InvalidFormat, match="schema must be 'wbengine/flow-export/2'"):
        operations.import_flow(shop.kept.backend, data)


def test_export_is_bounded_and_continued(shop: Shop) -> None:
    data = shop.get("export?limit=2").json()
    assert len(data["events"]) == 2
    rest = shop.get(f"events?after={data['events_after']}").json()
    assert [*data["events"], *rest["events"]] == shop.get("events").json()["events"]
    assert shop.get("export?limit=5001").status_code == 400


@pytest.mark.parametrize("user", ["victor", "olga"])
def test_export_without_shown_values_has_none(shop: Shop, user: str) -> None:
    data = shop.get("export", user, shop.without).json()
    assert data["values"] is None and data["flow"]["values"]["customer"].startswith("str, ")
    assert "fine" not in str(data)
    assert shop.get("export", user).json()["values"] == shop.get("values", user).json()["values"]


def test_failed_flow_is_exported_with_its_failure() -> None:
    kept = story.Kept()
    uuid = kept.run("f", linear_flow.Flow("f").add(Fails("stock")))
    with client(kept, show_values=True) as browser:
        data = browser.get(f"/api/v1/flows/{uuid}/export", headers=bearer()).json()
    assert "out of stock" in str(data["flow"]["failures"])
    assert [each["value"] for each in data["values"]] == [None]


def test_limits_are_listed_in_pages(store: base.Backend) -> None:
    account = account_stores.store_of(store)
    quota = Quota("100/m", 0.6, 4)
    for name in ("a", "b"):
        for number in range(2):
            account.settle({name: (quota, [PermitRequest(f"flow-{number}", 1, 2, 0, 60)])})
    with client(store) as browser:
        first = browser.get("/api/v1/limits?limit=1", headers=bearer()).json()
        rest = browser.get("/api/v1/limits?after=a", headers=bearer()).json()
    (limit,) = first["limits"]
    flows = [{"uuid": f"flow-{number}", "held": 2, "waiting": 0} for number in range(2)]
    assert limit == {
        "name": "a", "rate": "100/m", "concurrency": 4, "held": 4, "waiting": 0, "flow_count": 2,
        "flows": flows, "parked": 0, "changes": [], "next_permit": None, "used": None,
        "defined": {"rate": "100/m", "concurrency": 4},
    }  # fmt: skip
    assert first["after"] == "a" and [each["name"] for each in rest["limits"]] == ["b"]


FLOWS = "tests.support.typed_orders"


@pytest.fixture
def allowed() -> Iterator[None]:
    with allowing(FLOWS):
        yield


def get(factory: str | None) -> Any:
    browser = client(story.Kept(), token=None, users=parse_users(FILE))
    query = {} if factory is None else {"factory": factory}
    return browser.get("/api/v1/inputs", params=query, headers=bearer(TOKENS["victor"]))


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
