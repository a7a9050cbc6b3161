"""Requests to undo complete flows that are repeated, withdrawn, simultaneous or late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operations import undo_flows
from wbengine import engines, exceptions, operations, states
from wbengine.persistence import backends, base
from wbengine.testing import run_submitted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    undo_flows.UNDONE.clear()
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def test_repeated_request_undoes_the_flow_once(store: base.Backend) -> None:
    handle = engines.submit(undo_flows.plain, backend=store)
    run_submitted(store)
    requests = [operations.request(store, handle.id, "revert") for _ in range(3)]
    assert [each.is_new for each in requests] == [True, False, False]
    run_submitted(store)
    with pytest.raises(exceptions.InvalidState, match="no task can be reverted"):
        operations.request(store, handle.id, "revert")
    run_submitted(store)
    assert (handle.state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_withdrawn_request_leaves_the_flow_complete(store: base.Backend) -> None:
    handle = engines.submit(undo_flows.plain, backend=store)
    run_submitted(store)
    operations.request(store, handle.id, "revert")
    operations.cancel(store, handle.id)
    run_submitted(store)
    assert (handle.state, undo_flows.UNDONE) == (states.SUCCESS, [])


def test_simultaneous_reversions_undo_the_flow_once(store: base.Backend) -> None:
    uuid = undo_flows.complete(store, undo_flows.plain)
    ready, refused = threading.Barrier(4), []

    def revert() -> None:
        ready.wait()
        try:
            operations.revert(store, uuid).run()
        except (exceptions.InvalidState, exceptions.FlowBusy) as error:
            refused.append(error)

    threads = [threading.Thread(target=revert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert operations.find(store, uuid).state == states.REVERTED
    assert undo_flows.UNDONE == ["charge"] and len(refused) <= 3


def test_unique_key_belongs_to_the_flow_until_it_is_undone(store: base.Backend) -> None:
    def submit() -> str:
        return engines.submit(undo_flows.plain, backend=store, unique="order-7").id

    first = submit()
    run_submitted(store)
    operations.request(store, first, "revert")
    assert submit() == first
    run_submitted(store)
    second = submit()
    assert second != first
    run_submitted(store)
    third = submit()
    operations.request(store, second, "revert")
    assert submit() == third
    run_submitted(store)
    ends = [operations.find(store, uuid).state for uuid in (first, second, third)]
    assert ends == [states.REVERTED, states.REVERTED, states.SUCCESS]
