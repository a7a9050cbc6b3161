"""Vendored and static files."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from starlette.testclient import TestClient

import wbengine.dashboard

STATIC = Path(wbengine.dashboard.__file__).parent / "static"
VENDOR = STATIC / "vendor"


def test_vendored_files_match_the_manifest() -> None:
    data = json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))
    known = {"manifest.json"}
    for entry in data["files"]:
        content = (VENDOR / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], entry["file"]
        assert entry["version"].encode() in content
        licence = (VENDOR / entry["licence_file"]).read_text(encoding="utf-8")
        assert entry["licence"] == "0BSD" and "Zero-Clause BSD" in licence
        known |= {entry["file"], entry["licence_file"]}
    assert {path.name for path in VENDOR.iterdir()} == known


def test_assets_load_nothing_from_other_hosts() -> None:
    for path in [*STATIC.glob("*.*"), *(STATIC.parent / "templates").glob("*.html")]:
        hosts = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", path.read_text(encoding="utf-8"))
        assert set(hosts) <= {"http://www.w3.org"}, path.name


def test_static_files_need_no_token_and_have_safe_headers(stranger: TestClient) -> None:
    for name in ("dashboard.css", "dashboard.js", "vendor/htmx.min.js", "icon.svg", "graph.css"):
        answer = stranger.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert "script-src" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert stranger.get("/static/vendor/").status_code == 404


def test_asset_urls_contain_a_content_digest(guest: TestClient) -> None:
    page = guest.get("/").text
    digest = hashlib.sha256((STATIC / "dashboard.css").read_bytes()).hexdigest()[:12]
    assert f'href="/static/dashboard.css?v={digest}"' in page
