"""`wbengine flow assign` assigns flows to another version of their code."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support import conducted
from wbengine import engines
from wbengine.persistence import _codes, backends


def test_flows_are_assigned_after_confirmation(
    wbengine: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    monkeypatch.setenv("WBENGINE_PERSISTENCE", url)
    with backends.backend(url) as store, contextlib.closing(store.get_connection()) as connection:
        uuid = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"}).id
        detail = connection.get_flow_details(uuid)
        detail.code = "tests:v43"
        connection.save_changes(detail, ())
        for version in ("v42", "v43"):
            connection.add_codes(version, ["tests"])
        other = engines.submit(conducted.greeting, backend=store, inputs={"name": "y"}).id
        lines = wbengine("flow", "list").out.splitlines()
        assert "CODE" in lines[0] and ["tests:v43" in line for line in lines[1:]] == [False, True]
        for version, uuids in ("v43", {uuid}), ("tests:v43", {uuid}), ("v42", set()):
            listed = wbengine("flow", "list", "--code-version", version, "--json").json["flows"]
            assert {row["uuid"] for row in listed} == uuids
        answer = wbengine("flow", "cancel", "--code-version", "v43", "--dry-run", "--json")
        assert answer.json["flows"] == [uuid] and other != uuid
        words = ("flow", "assign", "--from-code", "v43", "--to-code")
        answer = wbengine(*words, "v41")
        assert answer.code == 2 and "has no code version 'v41'" in answer.err
        answer = wbengine(*words, "v42")
        assert answer.code == 2 and "pass --yes to assign 1 flow of code v43 to v42" in answer.err
        document = wbengine(*words, "v42", "--dry-run", "--json").json
        assert (document["flows"], document["dry_run"]) == ({"tests": 1}, True)
        assert connection.get_flow_details(uuid).code == "tests:v43"
        monkeypatch.setattr(_codes, "LIVE_SECONDS", 0.0)
        assert "waits for code v43 or newer of tests" in wbengine("flow", "show", uuid).out
        answer = wbengine(*words, "v42", "--yes")
        assert (answer.code, answer.out) == (0, "1 flow of tests assigned\n")
        assert connection.get_flow_details(uuid).code == "tests:v42"


@pytest.mark.parametrize(
    "words", [("--app", "shop"), ("--code-version-policy", "exact"), ("--code-version", "a b")]
)
def test_serve_refuses_invalid_code_options(
    wbengine: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    answer = wbengine("serve", "--persistence", f"sqlite:///{tmp_path}/flows.db", *words)
    assert answer.code == 2 and "code_version" in answer.err
