"""Export and import of flows as JSON documents."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from tests.contract.stored_flows import few
from wbengine import exceptions, operations, states
from wbengine.persistence import backends, base, models
from wbengine.signals import Signal
from wbengine.types._outline import Outline, OutlineNode

from . import records


@contextlib.contextmanager
def memory() -> Iterator[base.Backend]:
    with contextlib.closing(backends.fetch("memory")) as store:
        yield store


def written(backend: base.Backend, uuid: str) -> Any:
    """Return the exported document after a round trip through JSON."""
    return json.loads(json.dumps(operations.export(backend, uuid), allow_nan=False))


@few
@given(book=records.books())
def test_exported_flow_is_unchanged_after_import(
    backend: base.Backend, book: models.LogBook
) -> None:
    """All fields of records, between stores of any kind."""
    with memory() as first, memory() as last:
        with first.get_connection() as connection:
            connection.save_logbook(book)
        for flow in book:
            document = written(first, flow.uuid)
            operations.import_flow(backend, document)
            assert written(backend, flow.uuid) == document
            operations.import_flow(last, written(backend, flow.uuid))
            assert written(last, flow.uuid) == document
            with last.get_connection() as connection:
                flow_detail = connection.get_flow_details(flow.uuid)
            assert records.of_flow(flow_detail) == records.of_flow(flow)


def a_flow(backend: base.Backend) -> models.FlowDetail:
    book, flow = models.LogBook("b"), models.FlowDetail("f")
    flow.enter(states.SUSPENDED, 5.0, "lunch")
    flow.add(models.TaskDetail("t"))
    book.add(flow)
    with backend.get_connection() as connection:
        connection.save_logbook(book)
    return flow


def test_imported_flow_keeps_its_outline_and_epoch(backend: base.Backend) -> None:
    """Workers identify requests of earlier runs by their epochs."""
    outline = Outline((OutlineNode("f", "flow", None),), ())
    with memory() as first:
        flow = a_flow(first)
        with first.get_connection() as connection:
            for _ in range(3):
                connection.release_lease(connection.acquire_lease(flow.uuid, "me", 60))
            connection.save_outline(flow.uuid, outline)
        operations.import_flow(backend, written(first, flow.uuid))
    with backend.get_connection() as connection:
        stored_outline = connection.get_outline(flow.uuid)
        assert stored_outline is not None and stored_outline.digest == outline.digest
        assert connection.acquire_lease(flow.uuid, "you", 60).epoch == 4


def test_flow_is_imported_into_its_book(backend: base.Backend) -> None:
    flow = a_flow(backend)
    document = written(backend, flow.uuid)
    with backend.get_connection() as connection:
        connection.destroy_flow(flow.uuid)
        operations.import_flow(backend, document)
        (book,) = connection.get_logbooks()
    assert [each.uuid for each in book] == [flow.uuid]


def test_import_of_existing_flow_is_refused(backend: base.Backend) -> None:
    flow = a_flow(backend)
    document = written(backend, flow.uuid)
    document["flow"]["name"] = "other"
    with pytest.raises(exceptions.Duplicate, match=flow.uuid):
        operations.import_flow(backend, document)
    with backend.get_connection() as connection:
        assert connection.get_flow_details(flow.uuid).name == "f"


def test_interrupted_import_can_be_completed(backend: base.Backend) -> None:
    """The outline is written after the flow; if it is missing, the import can be repeated."""
    outline = Outline((OutlineNode("f", "flow", None),), ())
    with memory() as first:
        flow = a_flow(first)
        with first.get_connection() as connection:
            connection.save_outline(flow.uuid, outline)
        document = written(first, flow.uuid)
    operations.import_flow(backend, {**document, "outline": None})
    with pytest.raises(exceptions.Duplicate, match=flow.uuid):
        changed = {**document, "flow": {**document["flow"], "state": states.RUNNING}}
        operations.import_flow(backend, changed)
    operations.import_flow(backend, document)
    assert written(backend, flow.uuid) == document
    with pytest.raises(exceptions.Duplicate, match=flow.uuid):
        operations.import_flow(backend, document)


@pytest.mark.parametrize("has_run", [False, True])
def test_import_that_failed_before_the_signals_is_repeated(
    backend: base.Backend, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    with memory() as first:
        flow = a_flow(first)
        with first.get_connection() as connection:
            connection.put_signal(flow.uuid, Signal.of("approved", True, 1.5))
            if has_run:
                outline = Outline((OutlineNode("f", "flow", None),), ())
                connection.save_outline(flow.uuid, outline)
        document = written(first, flow.uuid)

    def fail(*arguments: object) -> None:
        raise exceptions.StorageFailure("connection lost")

    with backend.get_connection() as connection:
        with monkeypatch.context() as patch:
            patch.setattr(type(connection), "put_signal", fail)
            with pytest.raises(exceptions.StorageFailure):
                operations.import_flow(backend, document)
        operations.import_flow(backend, document)
        (signal,) = connection.signals([flow.uuid])[flow.uuid]
        assert signal.value is True
        assert (connection.get_outline(flow.uuid) is not None) == has_run
    with pytest.raises(exceptions.Duplicate):
        operations.import_flow(backend, document)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "wbengine/flow-export/1"}, "schema must be "),
        ({"book": None}, "must be an exported flow"),
        ({"flow": {"name": "f"}}, "'uuid' is a required"),
        ({"atoms": [{"kind": "tusk"}]}, "must be an exported flow"),
        (
            {"atoms": [{"kind": "task", "name": "t", "uuid": "u", "state": "?"}]},
            "invalid state: '?'",
        ),
        ({"outline": "AAAA"}, "invalid outline"),
        ({"atoms": [{"kind": "book", "name": "t", "uuid": "u"}]}, "'kind'"),
        ({"atoms": [{"kind": "task", "uuid": "u", "worker": {}}]}, "'worker'"),
        ({"atoms": [{"kind": "task", "uuid": "u", "attempt": 10**30}]}, "'attempt'"),
        ({"flow": {"uuid": 5, "epoch": 0}}, "'uuid'"),
        ({"flow": {"uuid": "u", "epoch": 0, "name": "x" * 256}}, "FlowDetail .* 255 .* got 256"),
        ({"book": {"uuid": "u", "name": "x" * 256}}, "LogBook must have at most 255 .* got 256"),
        ({"atoms": [{"kind": "task", "name": "x" * 256, "uuid": "u"}]}, "TaskDetail .* got 256"),
        ({"flow": {"uuid": "u", "epoch": 0, "created": "x"}}, "'created'"),
        ({"flow": {"uuid": "u", "epoch": 0, "history": [[5, "x", 7]]}}, "'history'"),
    ],
)
def test_invalid_export_document_is_refused(change: Any, words: str) -> None:
    with memory() as first, memory() as other:
        document = {**written(first, a_flow(first).uuid), **change}
        with pytest.raises(exceptions.InvalidFormat, match=words.replace("?", r"\?")):
            operations.import_flow(other, document)
        assert other.get_connection().list_flows().flows == []
