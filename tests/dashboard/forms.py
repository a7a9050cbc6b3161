"""Forms as a browser sends them."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

from tests.dashboard import story

#: Headers of a form that was sent by a page of the same site.
OURS = {"origin": story.HOST, "sec-fetch-site": "same-origin"}

_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')


def token_in(page: str) -> str:
    match = _TOKEN.search(page)
    assert match is not None, "the page has no form"
    return match[1]


def send(
    client: TestClient,
    path: str,
    fields: dict[str, str] | None = None,
    headers: dict[str, str] = OURS,
) -> Any:
    return client.post(
        path, data=fields or {"nothing": ""}, headers=headers, follow_redirects=False
    )
