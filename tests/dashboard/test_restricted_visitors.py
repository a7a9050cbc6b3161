"""Visitors with tags find nothing about other flows: not in pages, lists, counts or errors."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import allowing, bearer, client, refused
from tests.dashboard.forms import send
from tests.dashboard.site import asked, serving
from tests.support import requested
from wbengine import engines, task
from wbengine.dashboard import (
    Site,
    Visitor,
    _key_management,
    _operation_routes,
    create_app,
    parse_users,
)
from wbengine.dashboard._sessions import Sessions
from wbengine.operations import _operation, pause_tasks
from wbengine.patterns import linear_flow
from wbengine.persistence import _listing, base
from wbengine.persistence._restricted import RestrictedBackend
from wbengine.persistence.backends._memory import MemoryBackend
from wbengine.persistence.backends._sql import tables, writing
from wbengine.schedules import Schedule, Schedules
from wbengine.types import _tags

FACTORY = "tests.operations.flows:steps"
OTHER_FACTORY = "tests.dashboard.api_flows:approval"
USERS = """\
ann   admin  token-of-ann-0123456789
bill  admin  token-of-bill-0123456789  team=billing
"""


def as_user(name: str) -> dict[str, str]:
    return bearer(f"token-of-{name}-0123456789")


BILL, ANN = as_user("bill"), as_user("ann")
FLOWS = "/api/v1/flows"
#: An event that ends streams after their first events.
ENDED = threading.Event()
ENDED.set()
#: A number that foreign flows have reached, and the factor of leases in the numbers of batches.
MANY = 7_391_846_000
BATCHES = 1 << 36
UNKNOWN = "00000000-0000-4000-8000-000000000000"
#: Text in all values of foreign flows.
FOREIGN = "zzforeign"
FOREIGN_TAGS: tuple[dict[str, str], ...] = (
    {},
    {"team": "sales"},
    {"team": "Billing"},
    {"team": "BILLING"},
    {"team": "billing2"},
    {"team": "billin"},
    {"Team": "billing"},
    {"team ": "billing"},
    {"shop": "billing"},
    {"team": "bílling"},
)


class Talk(task.Task):
    def execute(self, word: str) -> str:
        return f"{word} result"


class Fail(task.Task):
    def execute(self, word: str) -> None:
        raise RuntimeError(f"{word} error")


class Shop:
    """A store with flows of several teams, and the visitors of its dashboard."""

    def __init__(self, backend: base.Backend) -> None:
        self.backend = backend
        self.own: list[str] = []
        self.foreign: list[str] = []

    def run(self, word: str, tags: dict[str, str], *, fails: bool = False) -> str:
        last: Any = Fail if fails else Talk
        flow = linear_flow.Flow(f"{word} flow").add(Talk(f"{word} first"), last(f"{word} last"))
        detail = base.create_flow_detail(flow, backend=self.backend, meta={"tags": tags})
        engine = engines.load(
            flow, flow_detail=detail, backend=self.backend, store={"word": word}, engine="serial"
        )
        with contextlib.suppress(RuntimeError):
            engine.run()
        return str(detail.uuid)

    def add_own(self, count: int = 2) -> None:
        for number in range(count):
            tags = {"team": "billing", "number": str(number)}
            self.own.append(self.run(f"own-{number}", tags, fails=bool(number % 2)))

    def add_foreign(self) -> None:
        for number, tags in enumerate(FOREIGN_TAGS):
            self.foreign.append(self.run(FOREIGN, tags, fails=bool(number % 2)))
        pause_tasks(self.backend, f"{FOREIGN}.*", reason=f"{FOREIGN} reason")
        with contextlib.suppress(ValueError):  # not in all stores
            schedules = Schedules(self.backend)
            schedule = Schedule(name=f"{FOREIGN} schedule", factory=FACTORY, cron="0 0 * * *")
            schedules.add(schedule)

    def client(self, **options: Any) -> TestClient:
        users = parse_users(USERS)
        options = {"allow_actions": True, "show_values": True, **options}
        return client(self, token=None, users=users, **options)

    def atoms_of(self, uuid: str) -> list[str]:
        with contextlib.closing(self.backend.get_connection()) as connection:
            return [atom.uuid for atom in connection.get_atoms_for_flow(uuid)]


@pytest.fixture
def sold(store: base.Backend) -> Iterator[Shop]:
    """A database, to which flows can be submitted."""
    with allowing("tests.operations.flows", "tests.dashboard.api_flows"):
        yield Shop(store)


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, sold: Shop) -> Shop:
    return sold if request.param == "sqlite" else Shop(MemoryBackend())


def listed(browser: TestClient, headers: Any, **query: str) -> list[str]:
    """Return the uuids of the listed flows."""
    rows = browser.get(FLOWS, params=query, headers=headers).json()["flows"]
    return [row["uuid"] for row in rows]


def routes_of(app: Any, method: str) -> list[str]:
    """Return the templates of all routes of a dashboard for a method."""
    routes = [each for each in app._app.routes if isinstance(each, Route)]
    return [each.path for each in routes if method in (each.methods or ())]


def filled(template: str, flow: str, atom: str) -> str:
    """Return a path for a template, for a flow and one of its atoms."""
    values = {"uuid": flow, "flow": flow, "atom": atom, "action": "cancel"}
    values |= {"schedule": "s", "worker": "w", "queue": "q", "request": "r"}
    return re.sub(r"{(\w+)(:\w+)?}", lambda match: values[match[1]], template)


#: Parts of responses that differ between two equal requests.
VOLATILE = re.compile(
    r'nonce(=|-)"?[^"\' ]+|(\d+ min ?)?(\d+ s ?)?ago|\bnow\b|name="form_token" value="\w+"|'
    "content-length: [0-9]+"
)


def walked(shop: Shop, headers: dict[str, str]) -> dict[str, tuple[int, str]]:
    """Return status and text of each path that can be read, for own flows and a missing one."""
    answers = {}
    with shop.client(closing=ENDED) as browser:
        flows = [*((uuid, shop.atoms_of(uuid)[-1]) for uuid in shop.own), (UNKNOWN, UNKNOWN)]
        queries = (
            "", "?part=1", "?part=head", "?find=flow", f"?find={FOREIGN}", "?find=team=billing",
            "?find=team=sales", "?state=FAILURE", "?limit=1", "?name=flow", "?since=1h",
            "?engine=serial", "?after=", "?wait=0",
        )  # fmt: skip
        for template in routes_of(browser.app, "GET"):
            for flow, atom in flows:
                for query in queries:
                    path = f"{filled(template, flow, atom)}{query}"
                    if path not in answers:
                        answer = browser.get(path, headers=headers)
                        lines = [f"{name}: {value}" for name, value in answer.headers.items()]
                        text = VOLATILE.sub("", "\n".join([answer.text, *lines]))
                        answers[path] = answer.status_code, text
    return answers


@pytest.mark.slow
def test_no_response_depends_on_foreign_flows(shop: Shop) -> None:
    shop.add_own()
    before = walked(shop, BILL)
    shop.add_foreign()
    after = walked(shop, BILL)
    assert before.keys() == after.keys() and len(before) > 150
    for path, answer in before.items():
        assert after[path] == answer, path
        for text in (FOREIGN, *shop.foreign, *(uuid[:8] for uuid in shop.foreign)):
            if text not in path:
                assert text not in answer[1].replace(FOREIGN, "", path.count(FOREIGN)), path
    seen = [path for path, (status, text) in after.items() if status == 200 and "own-0" in text]
    assert len(seen) > 50, "own flows are visible"
    everything = walked(shop, ANN)
    assert FOREIGN in everything[FLOWS][1], "the test can see foreign flows"
    assert FOREIGN in everything["/pauses"][1]


def count_foreign_flows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let later flows get numbers as in a store and a process with many other flows."""
    monkeypatch.setattr(writing, "_batch_counter", itertools.count(MANY))
    if isinstance(shop.backend, MemoryBackend):
        monkeypatch.setattr(shop.backend, "flow_numbers", itertools.count(MANY))
        return
    shop.add_foreign()
    with contextlib.closing(sqlite3.connect(str(shop.backend.conf["connection"])[10:])) as driver:
        for table in (tables.BOOKS, tables.FLOWS, tables.ATOMS, tables.LOGS):
            latest = f"(SELECT MAX(id) FROM {table.name})"
            driver.execute(f"UPDATE {table.name} SET id = {MANY} WHERE id = {latest}")
        driver.commit()


@pytest.mark.slow
def test_no_response_contains_a_number_that_counts_foreign_flows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in decimal nor in hexadecimal digits, nor as an offset from a known number."""
    count_foreign_flows(shop, monkeypatch)
    shop.add_own()
    with contextlib.closing(shop.backend.get_connection()) as connection:
        numbers = {connection.position(uuid).tie for uuid in shop.own}
    assert all(MANY <= int(number) < MANY + 1000 for number in numbers), "the test sees numbers"
    answers = walked(shop, BILL)
    assert len(answers) > 150
    for path, (_, text) in answers.items():
        decimal = [int(digits) for digits in re.findall(r"\d+", text)]
        for number in (*decimal, *(int(digits, 16) for digits in re.findall(r"[\da-f]+", text))):
            assert not MANY <= number % BATCHES < MANY + 1000, (path, number)


@pytest.mark.slow
def test_foreign_flow_is_answered_as_a_missing_one(shop: Shop) -> None:
    shop.add_own()
    shop.add_foreign()
    counted = 0
    bodies = {
        _operation_routes.path_of(each): dict.fromkeys(each.required - {each.target}, "text")
        for each in _operation.table().values()
    }
    bodies["/api/v1/flows/{flow}/tag"] = {"set": {"team": "sales"}}
    with shop.client(closing=ENDED) as browser:
        for method in ("GET", "HEAD", "POST"):
            for template in routes_of(browser.app, method):
                if "{uuid" not in template and "{flow" not in template:
                    continue
                for foreign in shop.foreign:
                    answers = []
                    for uuid, atom in (
                        (foreign, shop.atoms_of(foreign)[-1]), (UNKNOWN, UNKNOWN),
                    ):  # fmt: skip
                        path = filled(template, uuid, atom)
                        body = bodies.get(template, {})
                        answer = browser.request(
                            method, path, headers=BILL, json=body if method == "POST" else None
                        )
                        text = VOLATILE.sub("", answer.text).replace(uuid, "ID").replace(atom, "ID")
                        answers.append((answer.status_code, text, len(answer.headers)))
                    assert answers[0] == answers[1], (method, template)
                    assert answers[0][0] in (403, 404, 415), (method, template)
                    counted += answers[0][0] == 404
    assert counted > 150


def test_foreign_atom_in_the_address_of_an_own_flow_is_not_found(shop: Shop) -> None:
    shop.add_own(1)
    shop.add_foreign()
    with shop.client() as browser:
        for atom in (*shop.atoms_of(shop.foreign[1]), UNKNOWN):
            answer = browser.get(f"/flows/{shop.own[0]}/atoms/{atom}", headers=BILL)
            assert answer.status_code == 404 and FOREIGN not in answer.text
            answer = browser.get(f"/api/v1/flows/{shop.own[0]}/logs?task={atom}", headers=BILL)
            assert answer.status_code == 404 and FOREIGN not in answer.text


def test_pages_that_are_not_about_flows_are_refused(shop: Shop) -> None:
    """A new path is refused until it is listed."""
    allowed = {"/", "/api", "/api/v1/openapi.json", FLOWS, "/stream/flows"}
    public = {"/livez", "/readyz", "/login", "/static/graph.css"}
    shop.add_own(1)
    with shop.client(closing=ENDED) as browser:
        for method in ("GET", "POST"):
            for template in routes_of(browser.app, method):
                if template in public or "/flows/" in template or template in allowed:
                    continue
                answer = browser.request(method, filled(template, UNKNOWN, UNKNOWN), headers=BILL)
                assert answer.status_code == 403, (method, template)
                assert "only to flows with your tags" in answer.text
        for path in ("/metrics", "/workers", "/queues", "/schedules", "/pauses", "/stream/workers"):
            assert browser.get(path, headers=BILL).status_code == 403
        page = browser.get("/", headers=BILL).text
        assert "team=billing · " in page and 'href="/workers"' not in page
        assert 'href="/workers"' in browser.get("/", headers=ANN).text


def test_operation_without_a_flow_is_refused(sold: Shop) -> None:
    for operation in _operation.table().values():
        if operation.subject == "flow":
            continue
        path = f"/api/v1/{operation.subject}s/x/{operation.verb}"
        with sold.client() as browser:
            assert browser.post(path, json={}, headers=BILL).status_code == 403, operation.name


def cursors(browser: TestClient, headers: dict[str, str], limit: int = 1) -> Iterator[Any]:
    after = ""
    while after is not None:
        query = {"limit": str(limit), "after": after}
        page = browser.get(FLOWS, params=query, headers=headers).json()
        yield page
        after = page["after"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_contain_each_own_flow_once(shop: Shop, limit: int) -> None:
    shop.add_own(2)
    shop.add_foreign()
    shop.add_own(3)
    with shop.client() as browser:
        pages = list(cursors(browser, BILL, limit))
    assert [flow["uuid"] for page in pages for flow in page["flows"]] == shop.own[::-1]
    assert all(len(page["flows"]) == limit for page in pages[:-1])
    for page in pages[:-1]:
        assert json.loads(page["after"])[1] == page["flows"][-1]["uuid"], "no number of the store"


def test_page_after_a_deleted_flow_continues(shop: Shop) -> None:
    shop.add_own(3)
    with shop.client() as browser:
        first = next(cursors(browser, BILL))
        deleted = browser.post(f"/api/v1/flows/{shop.own[2]}/delete", headers=BILL)
        assert deleted.status_code == 200 or "FAILURE" in deleted.text
        assert listed(browser, BILL, after=first["after"], limit="9") == shop.own[1::-1]


def test_numeric_or_foreign_cursor_reveals_nothing(shop: Shop) -> None:
    shop.add_own(1)
    shop.add_foreign()
    shop.add_own(1)
    with shop.client() as browser:
        everything = next(cursors(browser, ANN, 3))
        assert isinstance(json.loads(everything["after"])[1], int)
        for after in (everything["after"], "[9e9, 5]"):
            answer = browser.get(FLOWS, params={"after": after}, headers=BILL)
            assert answer.status_code == 400 and "after must be" in answer.text
        texts = {
            browser.get(FLOWS, params={"after": json.dumps([9e9, uuid])}, headers=BILL).text
            for uuid in (*shop.foreign, UNKNOWN, "", "x" * 300)
        }
        assert len(texts) == 1 and shop.own[0] in texts.pop()


@pytest.mark.parametrize("tags", FOREIGN_TAGS[1:6], ids=str)
def test_filter_of_another_tag_is_empty(shop: Shop, tags: dict[str, str]) -> None:
    shop.add_own(1)
    shop.add_foreign()
    ((key, value),) = tags.items()
    with shop.client() as browser:
        answer = browser.get(FLOWS, params={"find": f"{key}={value}"}, headers=BILL)
    assert answer.json()["flows"] == [] and answer.json()["after"] is None


def test_prefix_of_a_foreign_id_finds_nothing(shop: Shop) -> None:
    shop.add_foreign()
    with shop.client() as browser:
        for length in (1, 4, 8, 36):
            assert listed(browser, BILL, find=shop.foreign[1][:length]) == []


def test_submitted_flow_has_the_tags_of_its_submitter(sold: Shop) -> None:
    with sold.client() as browser:
        body = {"factory": FACTORY, "tags": {"number": "17"}}
        uuid = browser.post(FLOWS, json=body, headers=BILL).json()["uuid"]
        flow = browser.get(f"/api/v1/flows/{uuid}", headers=BILL).json()
        assert flow["tags"] == {"team": "billing", "number": "17"}
        conflict = {"factory": FACTORY, "tags": {"team": "sales"}}
        answer = browser.post(FLOWS, json=conflict, headers=BILL)
        refused(answer, 400, "tag team must be 'billing', got 'sales'")
        assert listed(browser, ANN) == [uuid]


@pytest.mark.parametrize("show_values", [True, False])
def test_viewer_reads_values_and_result_by_one_rule(sold: Shop, show_values: bool) -> None:
    reader = bearer(_key_management.new(sold.backend, "reader", "viewer").text)
    with sold.client(show_values=show_values) as browser:
        uuid = browser.post(FLOWS, json={"factory": FACTORY}, headers=ANN).json()["uuid"]
        requested.run_jobs(sold.backend)
        atoms = browser.get(f"/api/v1/flows/{uuid}", headers=reader).json()["atoms"]
        result = browser.get(f"/api/v1/flows/{uuid}/result", headers=reader)
    assert atoms[0]["result"] == ("'a'" if show_values else "str, 1 character")
    if show_values:
        assert result.status_code == 200 and result.json()["values"]["of_a"] == "a"
    else:
        assert result.status_code == 403 and "--show-values" in result.json()["detail"]


def test_idempotency_key_of_another_team_is_independent(sold: Shop) -> None:
    """The foreign flow is neither returned nor compared."""
    key = {"idempotency-key": "order-17"}

    def submit(headers: dict[str, str], factory: str = FACTORY, **body: Any) -> Any:
        content = {"factory": factory, **body}
        return browser.post(FLOWS, json=content, headers={**headers, **key})

    sales = _key_management.new(sold.backend, "sales", "operator", tags={"team": "sales"})
    seller = bearer(sales.text)
    with sold.client() as browser:
        foreign = [submit(ANN), submit(seller, OTHER_FACTORY)]
        first, again = submit(BILL), submit(BILL)
        assert [answer.status_code for answer in (*foreign, first, again)] == [201] * 4
        uuids = [answer.json()["uuid"] for answer in (*foreign, first)]
        assert len(set(uuids)) == 3 and again.json()["uuid"] == uuids[2]
        conflict = submit(BILL, OTHER_FACTORY)
        refused(conflict, 409, "unique='order-17'")
        assert uuids[2] in conflict.text and uuids[0] not in conflict.text
        long = {"idempotency-key": "x" * 255}
        answer = browser.post(FLOWS, json={"factory": FACTORY}, headers={**BILL, **long})
        assert answer.status_code == 201, answer.text


def test_restricted_admin_changes_own_flows(sold: Shop, audit: Callable[[], list[str]]) -> None:
    with sold.client() as browser:
        created = browser.post(FLOWS, json={"factory": OTHER_FACTORY}, headers=BILL)
        path = f"/api/v1/flows/{created.json()['uuid']}"
        signal = browser.post(f"{path}/signal", json={"signal": "approved"}, headers=BILL)
        assert signal.status_code == 200, signal.text
        cancelled = browser.post(f"{path}/cancel", json={"reason": "x"}, headers=BILL)
        assert cancelled.status_code == 200, cancelled.text
        ended = sold.run("own", {"team": "billing"})
        path = f"/api/v1/flows/{ended}"
        assert browser.post(f"{path}/annotate", json={"text": "t"}, headers=BILL).status_code == 200
        tagged = browser.post(f"{path}/tag", json={"set": {"team": "sales"}}, headers=BILL)
        assert tagged.status_code == 400 and "set at the submission" in tagged.text
        assert browser.get(path, headers=BILL).json()["tags"] == {"team": "billing"}
        codes = {"from_code": "v1", "to_code": "v2"}
        refused(browser.post("/api/v1/flows/assign", json=codes, headers=BILL), 403, "all flows")
        deleted = browser.post(f"/api/v1/flows/{ended}/delete", headers=BILL)
        assert deleted.status_code == 200, deleted.text
        assert browser.get(f"/api/v1/flows/{ended}", headers=ANN).status_code == 404
    assert all("from bill, admin, 192.0.2.5" in line for line in audit())


def test_form_changes_only_own_flows(shop: Shop) -> None:
    shop.add_own(2)
    shop.add_foreign()
    with shop.client() as browser:
        answer = send(browser, "/login", {"token": "token-of-bill-0123456789"})
        assert answer.status_code == 303
        (cookie,) = browser.cookies.values()
        form_token = Sessions(parse_users(USERS)).form_token(cookie)
        form = {"form_token": str(form_token), "signal": "s"}
        for action in ("suspend", "cancel", "resume", "retry", "revert", "signal"):
            answers = [
                send(browser, f"/flows/{uuid}/{action}", form)
                for uuid in (shop.foreign[1], UNKNOWN)
            ]
            assert [answer.status_code for answer in answers] == [404, 404], action
            texts = [VOLATILE.sub("", answer.text) for answer in answers]
            assert texts[0].replace(shop.foreign[1], UNKNOWN) == texts[1]


def test_stream_of_a_list_has_no_foreign_events(shop: Shop) -> None:
    shop.add_own(1)
    users = parse_users(USERS)
    site = Site(shop.backend, port=0, users=users)
    with serving(site), asked(site, "GET", "/stream/flows", BILL) as answer:
        assert answer.readline()
        with asked(site, "GET", "/stream/flows", ANN) as all_events:
            assert all_events.readline()
            shop.add_foreign()
            assert FOREIGN in read_until(all_events, shop.foreign[-1])
        received = read_until(answer, shop.run("own-new", {"team": "billing"}))
    assert not [uuid for uuid in shop.foreign if uuid in received]
    assert FOREIGN not in received


def read_until(answer: Any, text: str) -> str:
    received = ""
    while text not in received:
        received += answer.readline().decode()
    return received


def test_feed_of_a_flow_is_not_shared_with_other_visitors(shop: Shop) -> None:
    """A visitor with access has opened the stream."""
    shop.add_foreign()
    path = f"/api/v1/flows/{shop.foreign[1]}/events/stream"
    site = Site(shop.backend, port=0, users=parse_users(USERS))
    with serving(site), asked(site, "GET", path, ANN) as answer:
        assert answer.status == 200 and answer.readline()
        for other in (path, f"/flows/{shop.foreign[1]}/stream"):
            with asked(site, "GET", other, BILL) as refused:
                assert refused.status == 404 and FOREIGN not in refused.read().decode()


def test_stream_ends_when_the_flow_loses_its_tag(shop: Shop) -> None:
    uuid = shop.run("own", {"team": "billing"})
    site = Site(shop.backend, port=0, users=parse_users(USERS))
    with serving(site), asked(site, "GET", f"/api/v1/flows/{uuid}/events/stream", BILL) as answer:
        assert answer.status == 200 and answer.readline()
        with contextlib.closing(shop.backend.get_connection()) as connection:
            detail = connection.get_flow_details(uuid, lazy=True)
            detail.meta["tags"] = {"team": "sales"}
            connection.save_changes(detail, ())
        answer.read()  # ends
        with asked(site, "GET", f"/api/v1/flows/{uuid}", BILL) as refused:
            assert refused.status == 404


def test_cached_view_is_not_shown_to_other_visitors(shop: Shop) -> None:
    shop.add_foreign()
    with shop.client() as browser:
        path = f"/flows/{shop.foreign[1]}"
        assert browser.get(path, headers=ANN).status_code == 200
        assert browser.get(path, headers=BILL).status_code == 404


def test_users_of_a_restricted_proxy_are_restricted(shop: Shop) -> None:
    shop.add_own(1)
    shop.add_foreign()
    users = parse_users("gateway proxy token-of-gateway-0123456789 team=billing")
    headers = {**as_user("gateway"), "x-wbengine-user": "eve"}
    with client(shop, token=None, users=users) as browser:
        assert listed(browser, headers) == shop.own
        assert browser.get("/workers", headers=headers).status_code == 403


GATEWAYS = """\
gateway  proxy  token-of-gateway-0123456789
limited  proxy  token-of-limited-0123456789  team=billing
"""


@pytest.mark.parametrize(
    ("proxy", "tags", "expected"),
    [
        ("gateway", ["team=billing"], ["own", "paris"]),
        ("gateway", ["team=billing , shop=paris"], ["paris"]),
        ("gateway", ["team=Billing"], []),
        ("limited", ["shop=paris"], ["paris"]),
        ("limited", ["team=billing"], ["own", "paris"]),
        ("limited", ["team=sales"], None),
        ("gateway", [""], None),
        ("gateway", ["team"], None),
        ("gateway", ["team=billing,"], None),
        ("gateway", ["team=billing,team=sales"], None),
        ("gateway", ["team=billing", "shop=paris"], None),
    ],
)
def test_proxy_names_tags_of_its_user(
    shop: Shop, proxy: str, tags: list[str], expected: list[str] | None
) -> None:
    uuids = {
        "own": shop.run("own", {"team": "billing"}),
        "paris": shop.run("paris", {"team": "billing", "shop": "paris"}),
        "sales": shop.run("sales", {"team": "sales", "shop": "paris"}),
    }
    with client(shop, token=None, users=parse_users(GATEWAYS)) as browser:
        headers = [
            ("authorization", f"Bearer token-of-{proxy}-0123456789"), ("x-wbengine-user", "eve"),
            *(("x-wbengine-tags", each) for each in tags),
        ]  # fmt: skip
        answer = browser.get(FLOWS, headers=headers)
    if expected is None:
        assert answer.status_code == 401
    else:
        seen = {flow["uuid"] for flow in answer.json()["flows"]}
        assert seen == {uuids[name] for name in expected}


def test_tags_of_a_proxy_are_ignored_from_others(shop: Shop) -> None:
    """They neither restrict nor extend access."""
    uuid = shop.run("sales", {"team": "sales"})
    with shop.client() as browser:
        headers = {**BILL, "x-wbengine-tags": "team=sales", "x-wbengine-role": "admin"}
        assert browser.get(f"/api/v1/flows/{uuid}", headers=headers).status_code == 404


QUEUE_USERS = """\
ann   admin     token-of-ann-0123456789
rita  admin     token-of-rita-0123456789  queue:reports
mike  operator  token-of-mike-0123456789  queue:mails queue:default
tina  viewer    token-of-tina-0123456789  queue:reports team=billing
gate  proxy     token-of-gate-0123456789  queue:reports
"""


def test_visitor_with_queues_reads_and_changes_only_their_flows(sold: Shop) -> None:
    def submit(user: str, **body: Any) -> Any:
        content = {"factory": FACTORY, **body}
        key = {"idempotency-key": "order-17"}
        return browser.post(FLOWS, json=content, headers={**as_user(user), **key})

    def seen(user: str, **query: str) -> list[str]:
        return listed(browser, as_user(user), **query)

    with client(sold, token=None, users=parse_users(QUEUE_USERS), allow_actions=True) as browser:
        answers = [submit("ann"), submit("rita"), submit("mike")]
        assert [answer.status_code for answer in answers] == [201] * 3
        of_ann, report, default = (answer.json()["uuid"] for answer in answers)
        assert len({of_ann, report, default}) == 3, "keys of different queues are independent"
        assert submit("rita", queue="reports").json()["uuid"] == report
        assert seen("rita") == [report] and set(seen("mike")) == {of_ann, default}
        assert seen("rita", queue="default") == []
        assert seen("tina") == [], "it needs the tag, too"
        named = {"x-wbengine-user": "eve", "x-wbengine-role": "admin"}
        assert listed(browser, {**as_user("gate"), **named}) == [report]
        refused(submit("rita", queue="mails"), 400, "queue must be one of reports, got 'mails'")
        for verb in ("cancel", "delete"):
            path = f"/api/v1/flows/{default}/{verb}"
            assert browser.post(path, json={}, headers=as_user("rita")).status_code == 404
        path = f"/api/v1/flows/{report}/cancel"
        assert browser.post(path, json={}, headers=as_user("rita")).status_code == 200


def test_debounce_key_of_another_queue_is_independent(sold: Shop) -> None:
    """A submission neither replaces nor returns a foreign flow with the same key."""
    with client(sold, token=None, users=parse_users(QUEUE_USERS), allow_actions=True) as browser:

        def submit(user: str, **body: Any) -> Any:
            content = {"factory": FACTORY, "debounce": "doc-7", "debounce_for": 60, **body}
            return browser.post(FLOWS, json=content, headers=as_user(user))

        first = [submit(user).json()["uuid"] for user in ("ann", "rita", "mike")]
        again = [submit(user, debounce_max=90).json()["uuid"] for user in ("ann", "rita", "mike")]
        assert first == again and len(set(first)) == 3
        for body, message in (
            ({"unique": "a"}, "debounce= does not allow unique="),
            ({"debounce_for": -1}, "debounce_for must be at least 0"),
            ({"debounce_for": "5m"}, "debounce_for must be of type number"),
        ):
            refused(submit("ann", **body), 400, message)


def test_visitor_with_queues_sees_only_these_queues(sold: Shop) -> None:
    for queue in ("reports", "mails"):
        engines.submit(
            FACTORY, queue=queue, fair_key=f"key-{queue} token=secret-17", backend=sold.backend
        )
    with client(sold, token=None, users=parse_users(QUEUE_USERS), allow_actions=True) as browser:

        def get(user: str, path: str) -> Any:
            return browser.get(path, headers=as_user(user))

        names = [each["name"] for each in get("rita", "/api/v1/jobs").json()["jobs"]]
        assert names == ["reports"]
        keys = get("rita", "/api/v1/jobs/reports/keys").json()
        assert keys["schema"] == "wbengine/job-keys/1" and keys["queue"] == "reports"
        shown = [(key["key"], key["waiting"]) for key in keys["keys"]]
        assert shown == [("key-reports token=***", 1)]
        assert get("rita", "/api/v1/jobs/mails/keys").status_code == 404
        assert get("tina", "/api/v1/jobs/reports/keys").status_code == 403
        assert get("ann", "/api/v1/jobs/mails/keys").json()["keys"][0]["waiting"] == 1
        assert "key-mails" not in get("rita", "/jobs?queue=mails").text
        page = get("rita", "/jobs").text
        assert "mails" not in page and "/jobs/pause" not in page and 'href="/jobs"' in page
        page = get("rita", "/jobs?queue=reports").text
        assert "key-reports token=***" in page and "secret-17" not in page
        assert "/jobs/pause" in get("ann", "/jobs").text and "mails" in get("ann", "/jobs").text
        assert get("tina", "/jobs").status_code == get("tina", "/api/v1/jobs").status_code == 403
        for path in ("/workers", "/metrics", "/schedules", "/stream/workers", "/jobs/"):
            assert get("rita", path).status_code in (403, 404), path
        paused = browser.post(
            "/api/v1/jobs/pause", json={"name": "reports"}, headers=as_user("rita")
        )
        assert paused.status_code == 403
        assert "queue reports · " in get("rita", "/").text


@pytest.mark.parametrize(
    "rights", [{"queues": ["reports"]}, {"tags": {"team": "billing"}}], ids=["queues", "tags"]
)
def test_rotated_key_keeps_its_rights(shop: Shop, rights: dict[str, Any]) -> None:
    shop.add_foreign()
    _key_management.new(shop.backend, "ci", "viewer", **rights)
    text = _key_management.rotate(shop.backend, "ci", keep=0.0).text
    with client(shop) as browser:
        assert listed(browser, bearer(text)) == []


def test_visitor_needs_all_tags(shop: Shop) -> None:
    both = shop.run("both", {"team": "billing", "shop": "paris"})
    shop.run("one", {"team": "billing"})
    tags = {"shop": "paris", "team": "billing"}
    text = _key_management.new(shop.backend, "paris", "viewer", tags=tags).text
    with client(shop) as browser:
        assert listed(browser, bearer(text)) == [both]


def test_restriction_of_a_mounted_application(shop: Shop) -> None:
    shop.add_own(1)
    shop.add_foreign()
    app = create_app(shop.backend, users=parse_users(USERS), url_prefix="/wbe")
    with TestClient(app, base_url=story.HOST) as browser:
        rows = browser.get("/wbe/api/v1/flows", headers=BILL).json()["flows"]
        assert [flow["uuid"] for flow in rows] == shop.own
        for path in ("/wbe/workers", "/wbe//workers", "/wbe/workers/", "/wbe/flows/../workers"):
            assert browser.get(path, headers=BILL).status_code in (403, 404), path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bill admin token-of-bill-0123456789 team", "tags must be different"),
        ("bill admin token-of-bill-0123456789 team=a team=b", "tags must be different"),
        ("bill admin token-of-bill-0123456789 team=", "the value of tag team must be"),
        ("bill admin token-of-bill-0123456789 te$am=x", "the key of a tag must be"),
        ("bill admin token-of-bill-0123456789 queue:", "queues must have the form queue:NAME"),
        ("bill admin token-of-bill-0123456789 queue:*", "queues must have the form queue:NAME"),
        ("bill admin token-of-bill-0123456789 que:a", "tags must be different"),
    ],
)
def test_invalid_tags_in_the_file_of_users_are_refused(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_users(line)
    assert "token-of-bill" not in str(caught.value)


def test_tags_in_the_file_of_users() -> None:
    (visitor,) = parse_users("bill admin token-of-bill-0123456789 team=a shop=b=c # x=y").values()
    assert visitor == Visitor("bill", "admin", {"team": "a", "shop": "b=c"})
    (visitor,) = parse_users("bill admin token-of-bill-0123456789 queue:b queue:a").values()
    assert visitor == Visitor("bill", "admin", {}, ("a", "b"))


def test_operation_on_many_flows_is_refused(sold: Shop) -> None:
    """It would be carried out by a conductor, without the restriction."""
    sold.add_own(1)
    sold.add_foreign()
    with sold.client() as browser:
        for verb in ("retry", "cancel", "delete"):
            for body in ({"all": True}, {"flows": sold.foreign}, {"filter": {"name": FOREIGN}}):
                for dry_run in (True, False):
                    content = {**body, "dry_run": dry_run}
                    answer = browser.post(f"/api/v1/flows/{verb}", json=content, headers=BILL)
                    assert answer.status_code == 403 and FOREIGN not in answer.text
        assert browser.get("/api/v1/bulks", headers=ANN).json()["bulks"] == []


def test_query_is_restricted_for_operations_on_many_flows(shop: Shop) -> None:
    part = RestrictedBackend(shop.backend, {"team": "billing"})
    query = _listing.Query(tags=_tags.conditions_of({"shop": "paris"}), limit=3)
    restricted = part.restrict(query)
    assert restricted is not None and restricted.limit == 3
    assert [(str(each), each.given) for each in restricted.tags] == [
        ("team=billing", True),
        ("shop=paris", False),
    ]
    assert part.restrict(_listing.Query(tags=_tags.conditions_of({"team": "sales"}))) is None
