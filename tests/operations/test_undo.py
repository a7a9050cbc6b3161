"""Reversion of flows that succeeded, at once and on request."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from tests.operations import flows, undo_flows
from wbengine import engines, exceptions, operations, states
from wbengine._concurrency import crash_points
from wbengine.persistence import base
from wbengine.testing import run_submitted

#: What `undoable` does, and in which order it is undone. Items of a Map have no order.
EXECUTED = ["a", "b", "b", "item 0", "item 1", "c", "d"]
REVERTED = ["-d", "-c", "-item", "-item", "-b", "-a"]


class Crash(BaseException):
    """The end of a process."""


def complete(backend: base.Backend, factory: str = "undoable", **options: Any) -> str:
    engine = operations.start(backend, f"tests.operations.flows:{factory}", **options)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    flows.DONE.clear()
    return str(engine.storage.flow_uuid)


def undone() -> list[str]:
    return [name.partition(" ")[0] for name in flows.DONE]


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_complete_flow_is_reverted_in_reverse_order(backend: base.Backend, kind: str) -> None:
    uuid = complete(backend, engine=kind)
    planned = operations.plan(backend, uuid, "revert")
    assert planned.revert == ("a", "b", "list", "items", "c", "d")
    operations.revert(backend, uuid, reason="recalled").run()
    row = operations.find(backend, uuid)
    assert (undone(), row.state, row.error) == (REVERTED, states.REVERTED, None)
    history = history_of(backend, uuid)
    assert ("REVERTING", "recalled") in history and history[-1] == ("REVERTED", None)
    with pytest.raises(exceptions.InvalidState, match="is in REVERTED: no task can be reverted"):
        operations.revert(backend, uuid)


def history_of(backend: base.Backend, uuid: str) -> list[tuple[str, str | None]]:
    with contextlib.closing(backend.get_connection()) as connection:
        return [(each.state, each.why) for each in connection.get_flow_details(uuid).history]


def test_failed_revert_of_a_complete_flow_is_repeated(backend: base.Backend) -> None:
    uuid = complete(backend)
    flows.FAILING.add("-c")
    with pytest.raises(OSError, match="c cannot be undone"):
        operations.revert(backend, uuid).run()
    assert operations.find(backend, uuid).state == states.FAILURE
    flows.FAILING.clear()
    operations.revert(backend, uuid).run()
    assert undone() == ["-d", "-c", *REVERTED[1:]]
    assert operations.find(backend, uuid).state == states.REVERTED


def test_reverted_flow_can_be_retried_from_the_beginning(backend: base.Backend) -> None:
    uuid = complete(backend)
    operations.revert(backend, uuid).run()
    flows.DONE.clear()
    operations.retry(backend, uuid).run()
    assert (flows.DONE, operations.find(backend, uuid).state) == (EXECUTED, states.SUCCESS)


def test_flow_without_tasks_has_nothing_to_revert(backend: base.Backend) -> None:
    uuid = complete(backend, "empty")
    with pytest.raises(exceptions.InvalidState, match="nothing to revert"):
        operations.revert(backend, uuid)
    assert operations.find(backend, uuid).state == states.SUCCESS


def test_conductor_reverts_a_complete_flow_on_request(store: base.Backend) -> None:
    handle = engines.submit(flows.undoable, backend=store)
    run_submitted(store)
    assert handle.state == states.SUCCESS
    assert operations.request(store, handle.id, "revert", reason="recalled", by="Ann").is_new
    run_submitted(store)
    assert (undone()[-6:], handle.state) == (REVERTED, states.REVERTED)
    assert ("REVERTING", "recalled (by Ann)") in history_of(store, handle.id)
    with pytest.raises(exceptions.ExecutionFailure, match="REVERTED"):
        handle.result()


def test_conductor_refuses_to_revert_a_flow_without_tasks(store: base.Backend) -> None:
    handle = engines.submit(flows.empty, backend=store)
    run_submitted(store)
    operations.request(store, handle.id, "revert")
    run_submitted(store)
    assert handle.state == states.SUCCESS
    with contextlib.closing(store.get_connection()) as connection:
        assert connection.commands([handle.id]) == {}
    assert run_submitted(store) == []


def test_reversion_continues_after_a_kill_at_each_write(backend: base.Backend) -> None:
    point = 1
    while revert_with_crash(backend, point):
        point += 1
    assert point > 15


def revert_with_crash(backend: base.Backend, point: int) -> bool:
    """Crash at a write, and continue; return False if there are fewer writes.

    The request is stored completely or not at all, and no stored result of a revert is lost.
    """
    uuid, left, stored = complete(backend), [point], [0]

    def crash(name: str) -> None:
        if name in ("storage.before-save", "storage.after-save", "engine.before-submit"):
            if name == "storage.after-save":
                stored[0] = len(flows.DONE)
            left[0] -= 1
            if left[0] <= 0:
                raise Crash(name)

    crash_points.install(crash)
    try:
        operations.revert(backend, uuid).run()
    except Crash:
        pass
    else:
        return False
    finally:
        crash_points.install(None)
    before, flows.DONE[:] = flows.DONE[: stored[0]], []
    state = operations.find(backend, uuid).state
    if state == states.SUCCESS:
        operations.revert(backend, uuid).run()
    elif state != states.REVERTED:
        operations.resume(backend, uuid).run()
    assert operations.find(backend, uuid).state == states.REVERTED
    flows.DONE[:0] = before
    assert undone() == REVERTED, point
    return True


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
