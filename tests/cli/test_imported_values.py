"""Large values of flows that `wbengine flow import` stores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support import framed
from wbengine import engines
from wbengine.persistence import backends


def test_commands_name_values_that_the_file_does_not_contain(
    wbengine: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_PAYLOADS", raising=False)
    place = {"connection": f"sqlite:///{tmp_path}/old.db", "payloads": str(tmp_path / "old")}
    with backends.backend(place) as store:
        engine = engines.load(framed.make(), backend=store)
        engine.run()
    old = "--persistence", f"sqlite:///{tmp_path}/old.db"
    file = str(tmp_path / "flow.json")
    answer = wbengine("flow", "export", engine.storage.flow_uuid, "-o", file, *old)
    assert answer.code == 0 and "refers to large values (1)" in answer.err, answer
    plain = wbengine("flow", "import", file, "--persistence", f"sqlite:///{tmp_path}/plain.db")
    assert plain.code == 0 and "this store has no place for them" in plain.err, plain
    new = "--persistence", f"sqlite:///{tmp_path}/new.db", "--payloads", str(tmp_path / "new")
    answer = wbengine("flow", "import", file, *new, "--json")
    (address,) = (path.name for path in tmp_path.glob("old/data/*/*"))
    assert answer.json["missing_values"] == [address]
    assert f"data/{address[:2]}/{address} (bytes, 299,776 items" in answer.err, answer
    shutil.copytree(tmp_path / "old" / "data", tmp_path / "same" / "data")
    same = "--persistence", f"sqlite:///{tmp_path}/same.db", "--payloads", str(tmp_path / "same")
    answer = wbengine("flow", "import", file, *same, "--json")
    assert (answer.json["missing_values"], answer.err) == ([], "")
