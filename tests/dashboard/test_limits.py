"""The page of limits: contents, permissions, buttons and audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import site
from tests.dashboard.forms import send, token_in
from wbengine._limits import account_stores
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.persistence import backends

NAME = "shop.call[eve]"
WHO = "olga, operator, 192.0.2.5"


class Store:
    """A store on disk, and its limits."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.limits = account_stores.store_of(backend)
        requests = [PermitRequest("f1", 1, 2, 7, 60)]
        self.limits.settle({NAME: (Quota("100/m", 0.6, 4), requests)})


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield Store(backend)


def test_operator_changes_and_unsets_limit(kept: Store, audit: Any) -> None:
    with site(kept, "olga") as browser:
        page = browser.get("/limits").text
        assert NAME in page and "Unset</button>" not in page
        fields = {"form_token": token_in(page), "name": NAME}
        more = {"rate": "5/s", "concurrency": "2", "reason": "slow shop"}
        answer = send(browser, "/limits/set", {**fields, **more})
        assert answer.status_code == 303
        change = kept.limits.changes()[NAME]
        assert (change.rate, change.concurrency, change.reason) == ("5/s", 2, "slow shop")
        assert change.by == f"dashboard ({WHO})"
        page = browser.get(answer.headers["location"]).text
        assert "The limit is changed." in page and f"Unset: {NAME}" in page
        assert "code: 100/m" in page and "code: 4" in page and ": slow shop" in page
        answer = send(browser, "/limits/unset", fields)
        assert answer.status_code == 303 and kept.limits.changes() == {}
        page = browser.get(answer.headers["location"]).text
        assert "The values of the code apply." in page and "Unset</button>" not in page
    assert audit() == [
        f"set limit '{NAME}' to '5/s 2 at once', reason 'slow shop', from {WHO}",
        f"unset limit '{NAME}', from {WHO}",
    ]


def test_page_and_api_show_changes_with_masked_reasons(kept: Store) -> None:
    reason = f"password={story.CANARY} {story.SCRIPT}"
    kept.limits.change(LimitChange("shop.call", "5/s", None, reason, "ann", 1e9))
    with site(kept, "victor") as viewer:
        page = viewer.get("/limits").text
        part = viewer.get("/limits?part=rows").text
        _, limit = viewer.get("/api/v1/limits").json()["limits"]
    assert NAME in page and "(all keys)" in page and "by ann" in page and "password=" in page
    assert story.SCRIPT not in page and story.CANARY not in page + str(limit)
    assert "Unset</button>" not in page and "<form" not in page
    assert 'id="limits"' in part and "<html" not in part
    assert (limit["name"], limit["rate"], limit["held"]) == (NAME, "5/s", 4)
    assert limit["changes"][0]["by"] == "ann" and limit["defined"]["rate"] == "100/m"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": NAME}, "requires at least one of rate, concurrency"),
        ({"name": "", "rate": "5/s"}, "requires parameter 'name'"),
        ({"name": NAME, "rate": "5"}, "rate must be a number from 1 per s, m, h or d"),
        ({"name": NAME, "concurrency": "0"}, "concurrency must be at least 1"),
        ({"name": NAME, "concurrency": "x"}, "concurrency must be a number"),
        ({"name": NAME, "rate": "5/s", "reason": "x" * 501}, "at most 500 characters"),
    ],
)
def test_invalid_change_is_refused_and_audited(
    kept: Store, audit: Any, fields: dict[str, str], message: str
) -> None:
    with site(kept, "olga") as browser:
        token = {"form_token": token_in(browser.get("/limits").text)}
        answer = send(browser, "/limits/set", {**token, **fields})
    assert answer.status_code == 400 and message in answer.text.replace("&#39;", "'")
    assert kept.limits.changes() == {}
    (line,) = audit()
    assert line.startswith("set limit '") and f" failed, from {WHO}: " in line


def test_viewer_may_not_change_limits(kept: Store, audit: Any) -> None:
    with site(kept, "victor") as viewer, site(kept, "olga") as operator:
        fields = {"form_token": token_in(operator.get("/limits").text), "name": NAME}
        for path in ("/limits/set", "/limits/unset"):
            assert send(viewer, path, {**fields, "rate": "5/s"}).status_code == 403
            assert send(operator, path, {"name": NAME, "rate": "5/s"}).status_code == 403
    assert kept.limits.changes() == {}
    assert all(" refused, from " in line for line in audit()) and len(audit()) == 4


def test_secret_in_reason_is_masked_in_audit(kept: Store, audit: Any) -> None:
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/limits").text), "name": NAME, "rate": "1/s"}
        reason = f"password={story.CANARY}\nforged line"
        assert send(browser, "/limits/set", {**fields, "reason": reason}).status_code == 303
    (line,) = audit()
    assert story.CANARY not in line and "\n" not in line and "password=" in line
