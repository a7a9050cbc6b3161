"""Parents and children on pages."""

from __future__ import annotations

from pathlib import Path

from tests.dashboard.conftest import admitted, client
from tests.support import child_flows
from wbengine import engines
from wbengine.persistence import backends, base


class Stored:
    def __init__(self, backend: base.Backend) -> None:
        self.backend = backend


def test_pages_link_parent_and_children(tmp_path: Path) -> None:
    with backends.backend("memory://") as backend, client(Stored(backend)) as opened:
        browser = admitted(opened)
        engine = engines.load(
            child_flows.order, {"folder": str(tmp_path), "items": ["tea", "cup"]}, backend=backend
        )
        engine.run()
        parent = engine.storage.flow_uuid
        page = browser.get(f"/flows/{parent}").text
        assert f"parent={parent}" in page and "2 SUCCESS" in page
        listed = browser.get("/", params={"parent": parent}).text
        assert listed.count("child_flows.ship") >= 2 and "child_flows.order<" not in listed
        document = browser.get("/api/v1/flows", params={"parent": parent}).json()
        (first, second) = document["flows"]
        assert first["parent"] == second["parent"] == parent
        assert f"/flows/{parent}" in browser.get(f"/flows/{first['uuid']}").text
