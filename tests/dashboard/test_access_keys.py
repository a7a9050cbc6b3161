"""Access keys in requests: their rights, their end, and attacks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import FILE, TOKENS, Clock, admitted, bearer, client, refused
from tests.dashboard.forms import send, token_in
from tests.dashboard.held import Running
from tests.dashboard.site import asked, running
from tests.support.waiting import until
from wbengine import exceptions
from wbengine._security import keys
from wbengine.dashboard import (
    _authentication,
    _failed_attempts,
    _key_management,
    _key_visitors,
    create_app,
    parse_users,
)
from wbengine.dashboard._failed_attempts import FailedAttempts
from wbengine.dashboard._key_visitors import KeyVisitors
from wbengine.persistence import _access_keys
from wbengine.persistence.backends import _memory


class Store:
    """A store with keys."""

    def __init__(self) -> None:
        self.backend = _memory.MemoryBackend()

    def new(self, name: str = "ci", role: str = "operator", **options: Any) -> str:
        return _key_management.new(self.backend, name, role, **options).text

    def revoke(self, name: str = "ci") -> None:
        assert _key_management.revoke(self.backend, name)

    def stored(self, name: str = "ci") -> Any:
        return _key_management.find(self.backend, name)[-1]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def browser(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A program that uses a dashboard, which reads each key again in each request."""
    monkeypatch.setattr(_key_visitors, "REFRESH_SECONDS", 0.0)
    users = parse_users(FILE)
    with client(store, token=None, users=users, allow_actions=True) as program:
        yield program


FLOWS = "/api/v1/flows"


def test_key_has_its_role(
    store: Store, browser: TestClient, audit: Callable[[], list[str]]
) -> None:
    viewer, operator = store.new("reader", "viewer"), store.new()
    pause = {"pattern": "shop.charge"}
    for text in (viewer, operator):
        assert browser.get(FLOWS, headers=bearer(text)).status_code == 200
    refused = browser.post("/api/v1/tasks/pause", json=pause, headers=bearer(viewer))
    assert refused.status_code == 403 and "needs role operator, got viewer" in refused.text
    paused = browser.post("/api/v1/tasks/pause", json=pause, headers=bearer(operator))
    assert paused.status_code == 200, paused.text
    assert paused.json()["by"] == "dashboard (key:ci, operator, 192.0.2.5)"
    assert "from key:reader, viewer, 192.0.2.5" in audit()[0]
    assert audit()[1] == "tasks pause 'shop.charge', from key:ci, operator, 192.0.2.5"


def test_unknown_wrong_revoked_and_expired_keys_have_one_answer(
    store: Store, browser: TestClient
) -> None:
    valid, revoked = store.new("valid"), store.new("revoked")
    expired = store.new("expired", seconds=1e-6)
    store.revoke("revoked")
    unknown = f"wbe_{'a' * 12}_{'b' * 40}"
    wrong = valid[:-1] + ("a" if valid[-1] != "a" else "b")
    texts = [revoked, expired, unknown, wrong, valid[:-1], f"{valid}x", valid.upper(), "wbe_"]
    answers = [browser.get(FLOWS, headers=bearer(text)) for text in texts]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].json()["detail"] == "The access key or token is unknown, revoked or expired."
    headers = [
        {name: value for name, value in answer.headers.items() if "security" not in name}
        for answer in answers
    ]
    assert all(each == headers[0] for each in headers)
    assert browser.get(FLOWS, headers=bearer(valid)).status_code == 200


@pytest.mark.parametrize("method", ["address", "login", "cookie", "other header", "other scheme"])
def test_key_counts_only_in_its_header(store: Store, browser: TestClient, method: str) -> None:
    text = store.new(role="admin")
    if method == "address":
        answer = browser.get(FLOWS, params={"token": text}, follow_redirects=False)
        assert "must not contain an access key" in answer.json()["detail"]
    elif method == "login":
        answer = send(browser, "/login", {"token": text})
    elif method == "cookie":
        (name,) = admitted_cookie(store)
        answer = browser.get(FLOWS, headers={"cookie": f"{name}={text}"})
    elif method == "other header":
        answer = browser.get(FLOWS, headers={"x-api-key": text})
    else:
        answer = browser.get(FLOWS, headers={"authorization": f"Basic {text}"})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert text not in answer.text


def admitted_cookie(store: Store) -> list[str]:
    with client(store) as other:
        return list(admitted(other).cookies)


def test_second_authorization_header_is_refused(store: Store, browser: TestClient) -> None:
    text = store.new()
    for other in (TOKENS["ann"], "wrong-token-0123456789", text):
        pairs = [("authorization", f"Bearer {text}"), ("Authorization", f"Bearer {other}")]
        answer = browser.get(FLOWS, headers=pairs)
        assert answer.status_code == 401 and text not in answer.text


def test_revoked_key_is_refused_although_a_cookie_is_valid(
    store: Store, browser: TestClient
) -> None:
    """A program in a browser must not get the rights of the person."""
    text = store.new()
    assert send(browser, "/login", {"token": TOKENS["ann"]}).status_code == 303
    assert browser.get(FLOWS).status_code == 200
    assert browser.get(FLOWS, headers=bearer("a-token-of-another-service")).status_code == 200
    store.revoke()
    assert browser.get(FLOWS, headers=bearer(text)).status_code == 401


def test_key_is_needed_to_use_a_dashboard_without_users_as_that_key(store: Store) -> None:
    text = store.new(role="viewer")
    app = create_app(store.backend, allow_actions=True)
    with TestClient(app, base_url=story.HOST) as program:
        assert program.get(FLOWS).status_code == 200
        pause = {"pattern": "shop.charge"}
        answer = program.post("/api/v1/tasks/pause", json=pause, headers=bearer(text))
        assert answer.status_code == 403
        store.revoke()
        time.sleep(_key_visitors.REFRESH_SECONDS)
        assert program.get(FLOWS, headers=bearer(text)).status_code == 401


def test_key_of_a_program_cannot_post_forms(running: Running) -> None:
    """A form needs the cookie of a person."""
    store = Store()
    store.backend = running.kept.backend
    text = store.new(role="admin")
    with client(store, allow_actions=True) as program:
        page = program.get(running.path, headers=bearer(text))
        assert page.status_code == 200 and "set-cookie" not in page.headers
        token = token_in(admitted(program).get(running.path).text)
        program.cookies.clear()
        ours = {"origin": story.HOST, "sec-fetch-site": "same-origin"}
        fields = {"form_token": token}
        answer = send(program, f"{running.path}/suspend", fields, {**ours, **bearer(text)})
        assert answer.status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_body_that_a_foreign_form_can_send_is_refused(
    store: Store, browser: TestClient, kind: str
) -> None:
    headers = {**bearer(store.new()), "content-type": kind}
    answer = browser.post("/api/v1/tasks/pause", content='{"pattern": "x"}', headers=headers)
    assert answer.status_code == 415


def test_request_of_a_foreign_page_is_refused(store: Store, browser: TestClient) -> None:
    foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    headers = {**bearer(store.new()), **foreign}
    answer = browser.post("/api/v1/tasks/pause", json={"pattern": "x"}, headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in browser.get(FLOWS, headers=headers).headers


def test_key_appears_in_no_log(store: Store, browser: TestClient, log: Callable[[], str]) -> None:
    text = store.new()
    for headers in (bearer(text), bearer(f"{text} x"), {"host": text}, {"origin": text}):
        browser.get(FLOWS, headers=headers)
        browser.post("/api/v1/tasks/pause", json={"pattern": text}, headers=headers)
    browser.get(f"/flows/{text}", headers=bearer(text))
    browser.get(FLOWS, params={"token": text})
    logging.getLogger("wbengine.audit").warning("nothing")
    assert text.rpartition("_")[2] not in log()


def test_use_is_written_once_a_minute_and_outside_the_request() -> None:
    store, clock = Store(), Clock()
    text = store.new()
    may_write = threading.Event()
    writes: list[float] = []

    class Slow(_memory.MemoryConnection):
        def note_use_of_access_key(self, key_id: str, at: float) -> None:
            assert may_write.wait(60)
            super().note_use_of_access_key(key_id, at)
            writes.append(at)

    store.backend.get_connection = lambda: Slow(store.backend)  # type: ignore[method-assign]
    keys = KeyVisitors(store.backend, clock)  # type: ignore[arg-type]
    began = clock.now
    for _ in range(5):
        assert keys.visitor_of(text) is not None
        clock.now += 10
    may_write.set()
    until(lambda: writes == [began])
    clock.now = began + 60
    assert keys.visitor_of(text) is not None
    until(lambda: writes == [began, began + 60])
    assert store.stored().used == began + 60
    assert KeyVisitors(store.backend, clock).visitor_of(text) is not None  # type: ignore[arg-type]
    assert len(writes) == 2, "another process has written the use"


def test_refused_key_is_not_used(store: Store) -> None:
    text = store.new()
    store.revoke()
    assert KeyVisitors(store.backend).visitor_of(text) is None
    assert store.stored().used is None


def test_key_is_read_again_after_a_moment() -> None:
    store, clock = Store(), Clock()
    text = store.new()
    keys = KeyVisitors(store.backend, clock)  # type: ignore[arg-type]
    assert keys.visitor_of(text) is not None
    store.revoke()
    clock.now += _key_visitors.REFRESH_SECONDS - 0.1
    assert keys.visitor_of(text) is not None
    clock.now += 0.2
    assert keys.visitor_of(text) is None


def test_key_works_as_soon_as_it_exists(store: Store) -> None:
    """An attempt before its creation is not remembered."""
    text = store.new()
    key = store.backend.access_keys.pop(store.stored().id)
    keys = KeyVisitors(store.backend)
    assert keys.visitor_of(text) is None
    store.backend.access_keys[key.id] = key
    assert keys.visitor_of(text) is not None


def test_number_of_cached_keys_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_key_visitors, "MAX_CACHED_KEYS", 3)
    keys = KeyVisitors(store.backend)
    for number in range(5):
        assert keys.visitor_of(store.new(f"key-{number}")) is not None
    assert len(keys._keys) == len(keys._uses) == 3


def test_key_with_unknown_role_is_refused(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A newer version may have stored it."""
    text = store.new()
    key = store.stored()
    store.backend.access_keys[key.id] = key._replace(role="emperor")
    assert KeyVisitors(store.backend).visitor_of(text) is None
    store.backend.access_keys[key.id] = key._replace(role="proxy")
    visitor = KeyVisitors(store.backend).visitor_of(text)
    assert visitor is None
    assert key.id in caplog.text


def test_key_is_refused_while_the_store_cannot_be_read(store: Store, browser: TestClient) -> None:
    text = store.new()

    class Down(_memory.MemoryConnection):
        def access_key(self, key_id: str) -> Any:
            raise exceptions.StorageFailure("the database does not answer")

    store.backend.get_connection = lambda: Down(store.backend)  # type: ignore[method-assign]
    refused(browser.get(FLOWS, headers=bearer(text)), 503, "does not answer")
    assert browser.get(FLOWS, headers=bearer(TOKENS["ann"])).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/stream/flows",
        "/flows/{uuid}/stream",
        "/api/v1/flows/{uuid}/events/stream",
        "/api/v1/flows/{uuid}?wait=60",
    ],
)
def test_revocation_ends_open_streams(
    running_flow: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_authentication, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(_key_visitors, "REFRESH_SECONDS", 0.0)
    store = Store()
    store.backend = running_flow.kept.backend
    text, other = store.new(), store.new("other")
    path = path.format(uuid=running_flow.detail.uuid)
    with running(store.backend) as site:
        revoking = threading.Timer(0.5, store.revoke)
        revoking.start()
        began = time.monotonic()
        with asked(site, "GET", path, bearer(text)) as answer:
            if "wait" in path:
                assert answer.status == 401
            else:
                assert answer.status == 200
                answer.read()  # ends
        assert 0.4 < time.monotonic() - began < 20
        with asked(site, "GET", "/stream/flows", bearer(other)) as answer:
            assert answer.status == 200 and answer.readline()
        with asked(site, "GET", path, bearer(text)) as answer:
            assert answer.status == 401


@pytest.fixture
def running_flow() -> Iterator[Running]:
    flow = Running()
    yield flow
    flow.end()


def test_address_with_many_failures_is_blocked(
    store: Store, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 5)
    known, fresh = store.new("known"), store.new("fresh")
    assert browser.get(FLOWS, headers=bearer(known)).status_code == 200
    for number in range(5):
        text = f"wbe_{'a' * 12}_{number:040}"
        assert browser.get(FLOWS, headers=bearer(text)).status_code == 401
    for other in (fresh, TOKENS["victor"], text):
        answer = browser.get(FLOWS, headers=bearer(other))
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
    assert send(browser, "/login", {"token": TOKENS["ann"]}).status_code == 429
    assert browser.get("/", params={"token": TOKENS["ann"]}).status_code == 429
    assert browser.get(FLOWS, headers=bearer(known)).status_code == 200
    assert browser.get("/livez").status_code == 200


def test_failures_do_not_block_clients_of_a_dashboard_without_users(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 2)
    with TestClient(create_app(store.backend), base_url=story.HOST) as program:
        for number in range(3):
            answer = program.get(FLOWS, headers=bearer(f"wbe_{'a' * 12}_{number:040}"))
        assert answer.status_code == 429
        for headers in ({}, bearer("token-of-another-service")):
            assert program.get(FLOWS, headers=headers).status_code == 200


def test_cookie_works_while_the_address_is_blocked(
    store: Store, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 1)
    assert send(browser, "/login", {"token": TOKENS["victor"]}).status_code == 303
    assert browser.get(FLOWS, headers=bearer(f"wbe_{'a' * 12}_{'b' * 40}")).status_code == 401
    for headers in ({}, bearer("token-of-another-service")):
        assert browser.get(FLOWS, headers=headers).status_code == 200


def test_failures_count_by_address_and_window() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)  # type: ignore[arg-type]
    for _ in range(_failed_attempts.MAX_FAILURES):
        assert not attempts.is_blocked("192.0.2.1", "t")
        attempts.fail("192.0.2.1")
    assert attempts.is_blocked("192.0.2.1", "t") and not attempts.is_blocked("192.0.2.2", "t")
    attempts.accept("known")
    assert not attempts.is_blocked("192.0.2.1", "known")
    clock.now += _failed_attempts.WINDOW_SECONDS
    assert not attempts.is_blocked("192.0.2.1", "t")


def test_addresses_of_one_ipv6_network_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 2)
    attempts = FailedAttempts()
    attempts.fail("2001:db8::1")
    attempts.fail("2001:db8::2")
    assert attempts.is_blocked("2001:db8::3", "t")
    assert not attempts.is_blocked("2001:db8:0:1::1", "t")


def test_number_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_failed_attempts, "_MAX_ADDRESSES", 3)
    monkeypatch.setattr(_failed_attempts, "_MAX_ACCEPTED", 3)
    attempts = FailedAttempts()
    for number in range(9):
        attempts.fail(f"192.0.2.{number}")
        attempts.accept(f"token-{number}")
    assert len(attempts._failures) == len(attempts._accepted) == 3


def test_file_of_users_must_not_contain_keys_or_their_names(store: Store) -> None:
    with pytest.raises(ValueError, match="must not start with 'wbe_'"):
        parse_users(f"ann admin {store.new()}")
    with pytest.raises(ValueError, match="got 'key:ci'"):
        parse_users("key:ci admin token-of-ann-0123456789")


def test_proxy_cannot_name_a_key(browser: TestClient) -> None:
    headers = {**bearer(TOKENS["gateway"]), "x-wbengine-user": "key:ci"}
    assert browser.get(FLOWS, headers=headers).status_code == 401


def test_name_of_a_valid_key_is_refused(store: Store) -> None:
    store.new()
    with pytest.raises(exceptions.Duplicate, match="wbengine access rotate ci"):
        store.new()
    store.revoke()
    store.new()


def test_rotated_key_remains_valid_for_a_while(store: Store) -> None:
    old = store.new(tags={"team": "billing"}, seconds=9.0)
    keys = KeyVisitors(store.backend)
    created = _key_management.rotate(store.backend, "ci", keep=60.0)
    assert keys.visitor_of(created.text) == keys.visitor_of(old) is not None
    replaced, latest = _key_management.find(store.backend, "ci")
    assert replaced.expires == pytest.approx(time.time() + 9, abs=5), "it is not prolonged"
    assert (latest.role, latest.tags, latest.expires) == ("operator", {"team": "billing"}, None)
    _key_management.rotate(store.backend, "ci", keep=0.0)
    assert [key.is_valid(time.time()) for key in _key_management.find(store.backend, "ci")] == [
        False, False, True,
    ]  # fmt: skip


def test_revoked_key_is_not_rotated(store: Store) -> None:
    store.new()
    store.revoke()
    with pytest.raises(exceptions.NotFound, match="not valid any more"):
        _key_management.rotate(store.backend, "ci", keep=60.0)


@pytest.fixture
def key_files(tmp_path: Path) -> Path:
    """A folder with key files of all roles."""
    for role, content in keys.new(per_role=True, encrypt=False).items():
        keys.write(tmp_path / f"{role}.json", content)
    return tmp_path


def test_dashboard_with_keys_accepts_only_signed_access_keys(
    store: Store, key_files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer of the store must not get the rights of the dashboard."""
    unsigned = store.new("unsigned", "admin")
    monkeypatch.setenv("WBENGINE_KEYS", str(key_files / "operator.json"))
    signed = store.new("signed", "viewer", tags={"team": "billing"})
    visitor = KeyVisitors(store.backend).visitor_of(signed)
    assert visitor is not None and visitor.tags == {"team": "billing"}
    assert KeyVisitors(store.backend).visitor_of(unsigned) is None
    assert "is not trusted" in caplog.text
    key = store.stored("signed")
    changes: list[dict[str, Any]] = [{"role": "admin"}, {"tags": {}}, {"name": "x"}, {"mac": None}]
    for change in changes:
        store.backend.access_keys[key.id] = key._replace(**change)
        assert KeyVisitors(store.backend).visitor_of(signed) is None, change
    other_id, other = _access_keys.generate()
    copied = key._replace(id=other_id, digest=_access_keys.digest_of(other))
    store.backend.access_keys[other_id] = copied
    assert KeyVisitors(store.backend).visitor_of(other) is None
    store.backend.access_keys[key.id] = key._replace(expires=9e9, used=1.0)
    assert KeyVisitors(store.backend).visitor_of(signed) is not None
    rotated = _key_management.rotate(store.backend, "signed", keep=0.0)
    assert KeyVisitors(store.backend).visitor_of(rotated.text) == visitor
