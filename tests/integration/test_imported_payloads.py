"""Export and import of flows that refer to large values."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import framed
from tests.support.framed import SIZE
from wbengine import engines, operations, task
from wbengine._payloads import payloads as payloads_module
from wbengine.operations import _document_references, _sweeping
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base

Opened = Callable[..., base.Backend]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens the store of a name, with a place of this name for values."""
    stores = []

    def open_store(name: str, *, has_place: bool = True) -> base.Backend:
        conf = {"connection": f"sqlite:///{tmp_path}/{name}.db"}
        conf["payloads"] = str(tmp_path / name) if has_place else "none"
        stores.append(backends.fetch(conf))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def names(place: Path, folder: str) -> set[str]:
    return {path.name for path in place.glob(f"{folder}/*/*")}


def run_frames(store: base.Backend) -> str:
    engine = engines.load(framed.make(), backend=store)
    engine.run()
    return str(engine.storage.flow_uuid)


def run_map(store: base.Backend) -> str:
    flow = linear_flow.Flow("f").add(
        framed.texts("texts", provides="texts", inject={"count": 2}),
        task.Map(framed.doubled("double"), over="texts", item="text", provides="doubled"),
    )
    engine = engines.load(flow, backend=store)
    engine.run()
    return str(engine.storage.flow_uuid)


def run_workflow(store: base.Backend) -> str:
    engine = engines.load(
        framed.grow("grow", provides="result"), {"text": "t" * SIZE}, backend=store
    )
    engine.signal("more", "m" * SIZE)
    engine.run()
    return str(engine.storage.flow_uuid)


def send_signal(store: base.Backend) -> str:
    """Store a flow with a signal that no task has received."""
    engine = engines.load(framed.grow("grow", provides="result"), {"text": "t"}, backend=store)
    uuid = str(engine.storage.flow_uuid)
    operations.signal(store, uuid, "more", "m" * SIZE)
    return uuid


def exported(store: base.Backend, uuid: str) -> Any:
    return json.loads(json.dumps(operations.export(store, uuid)))


@pytest.mark.parametrize("run", [run_frames, run_map, run_workflow, send_signal])
def test_all_values_of_an_imported_flow_are_kept(
    opened: Opened, tmp_path: Path, run: Callable[[base.Backend], str]
) -> None:
    source, target = opened("old"), opened("new")
    uuid = run(source)
    document = exported(source, uuid)
    shutil.copytree(tmp_path / "old" / "data", tmp_path / "new" / "data")
    operations.import_flow(target, document)
    assert names(tmp_path / "new", "refs") == names(tmp_path / "old", "refs")
    before = names(tmp_path / "new", "data")
    assert before
    for _ in _sweeping.sweep(target, 0.0):
        pass
    assert names(tmp_path / "new", "data") == before
    assert target.payloads is not None
    references = _document_references.references(document)
    assert {each.address for each in references} == before
    for reference in references:
        assert len(target.payloads.load(reference, "test")) >= SIZE // 256 * 256


def test_missing_values_are_named_and_kept_when_they_arrive(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = opened("old"), opened("new")
    uuid = run_frames(source)
    caplog.set_level(logging.WARNING, "wbengine.operations")
    operations.import_flow(target, exported(source, uuid))
    (address,) = names(tmp_path / "old", "data")
    assert f"imported flow {uuid}: 1 of 1 large values" in caplog.text
    assert payloads_module.data_name(address) in caplog.text
    assert names(tmp_path / "new", "refs") == {f"{address}.{uuid}"}
    shutil.copytree(tmp_path / "old" / "data", tmp_path / "new" / "data", dirs_exist_ok=True)
    for _ in _sweeping.sweep(target, 0.0):
        pass
    assert names(tmp_path / "new", "data") == {address}


def test_store_without_a_place_is_named(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    source, target = opened("old"), opened("new", has_place=False)
    uuid = run_frames(source)
    caplog.set_level(logging.WARNING, "wbengine.operations")
    operations.import_flow(target, exported(source, uuid))
    assert "refers to large values (1), and this store has no place for them" in caplog.text


def test_flow_without_large_values_is_imported_without_a_warning(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = opened("old"), opened("new")
    engine = engines.load(framed.make(), inputs={"size": 256}, backend=source)
    engine.run()
    caplog.set_level(logging.WARNING, "wbengine.operations")
    operations.import_flow(target, exported(source, engine.storage.flow_uuid))
    assert not caplog.records
    assert names(tmp_path / "new", "refs") == set()


def test_text_that_looks_like_a_reference_is_none(opened: Opened) -> None:
    source = opened("old")
    value = {"$": "payload", "!": "payload", "v": "0" * 64, "n": 1, "c": "str", "k": ""}
    engine = engines.load(framed.take(), inputs={"frame": b"", "other": value}, backend=source)
    engine.run()
    document = exported(source, engine.storage.flow_uuid)
    assert _document_references.references(document) == []
