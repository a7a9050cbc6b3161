"""The faulty store: refused, lost and slow writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from wbengine import engines, exceptions, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.testing import FaultyBackend


class Step(task.Task):
    def execute(self) -> str:
        return self.name


def a_book(name: str = "b") -> models.LogBook:
    book = models.LogBook(name)
    flow = models.FlowDetail("f")
    flow.add(models.TaskDetail("t"))
    book.add(flow)
    return book


def names(store: FaultyBackend) -> list[str]:
    """Return the names of the stored logbooks."""
    with store.inner.get_connection() as connection:
        return sorted(book.name for book in connection.get_logbooks())


def save(store: FaultyBackend, *books: str) -> list[str]:
    """Save logbooks; return the names of those that failed."""
    failed = []
    with store.get_connection() as connection:
        for name in books:
            try:
                connection.save_logbook(a_book(name))
            except exceptions.StorageFailure:
                failed.append(name)
    return failed


def test_store_without_faults_behaves_like_the_inner_store(tmp_path: Path) -> None:
    """Options and encoding come from the inner store."""
    with pytest.raises(ValueError, match="path"):
        FaultyBackend("dir")
    conf = {"connection": "dir", "path": str(tmp_path / "s")}
    with FaultyBackend(conf) as store:
        assert store.conf["path"] == conf["path"] and store.encodes
        engine = engines.load(linear_flow.Flow("f").add(Step("a")), backend=store)
        engine.run()
        (atom,) = engine.storage.flow_detail
    with backends.backend(conf) as later, later.get_connection() as connection:
        assert connection.get_atom_details(atom.uuid).results == "a"
    assert not FaultyBackend().encodes
    assert FaultyBackend(later).inner is later


def test_optional_read_methods_are_forwarded() -> None:
    book = a_book()
    (flow,) = book
    (atom,) = flow
    with FaultyBackend() as store, store.get_connection() as connection:
        connection.save_logbook(book)
        connection.save_changes(flow, (), logs=[models.LogChunk(atom.uuid, 1, -1, ())])
        assert [chunk.atom_uuid for chunk in connection.get_logs(flow.uuid)] == [atom.uuid]


def test_refused_write_changes_nothing_and_next_write_succeeds() -> None:
    with FaultyBackend() as store:
        fault = store.fail_next()
        assert save(store, "a", "b") == ["a"]
        assert names(store) == ["b"] and fault.count == 1


def test_write_with_a_lost_answer_is_stored() -> None:
    with FaultyBackend() as store:
        fault = store.lose_answer()
        assert save(store, "a", "b") == ["a"]
        assert names(store) == ["a", "b"] and fault.count == 1


@pytest.mark.parametrize(
    ("options", "failed"),
    [
        ({"times": 2}, "ab"),
        ({"times": None}, "abcdef"),
        ({"skip": 2}, "c"),
        ({"skip": 2, "times": None}, "cdef"),
        ({"every": 2}, "b"),
        ({"every": 2, "times": None}, "bdf"),
        ({"every": 3, "skip": 1, "times": None}, "d"),
        ({"method": "save_changes"}, ""),
        ({"method": "save_logbook"}, "a"),
    ],
)
def test_fault_options_select_the_writes_that_fail(options: dict[str, Any], failed: str) -> None:
    for written in (False, True):
        with FaultyBackend() as store:
            fault = (store.lose_answer if written else store.fail_next)(**options)
            assert "".join(save(store, *"abcdef")) == failed
            assert fault.count == len(failed)
            assert names(store) == sorted(set("abcdef") - (set() if written else set(failed)))


def test_fault_ends_with_its_block_or_heal() -> None:
    with FaultyBackend() as store:
        with store.fail_next(None) as fault:
            assert save(store, "a") == ["a"]
        assert save(store, "a") == [] and fault.count == 1
        store.lose_answer(None)
        store.fail_next(None, method="save_logbook")
        store.delay = 60.0
        store.heal()
        assert save(store, "b") == [] and store.delay == 0.0


def test_refusal_takes_precedence_over_lost_answer() -> None:
    with FaultyBackend() as store:
        store.lose_answer()
        store.fail_next()
        assert save(store, "a") == ["a"] and names(store) == []


def test_refusal_by_inner_store_is_raised_also_with_lost_answer() -> None:
    with FaultyBackend() as store, store.get_connection() as connection:
        store.lose_answer(None)
        with pytest.raises(exceptions.NotFound):
            connection.destroy_flow("none")


def test_writes_are_recorded_and_renewals_fail_only_by_name() -> None:
    book = a_book()
    (flow,) = book
    with FaultyBackend() as store, store.get_connection() as connection:
        connection.save_logbook(book)
        lease = connection.acquire_lease(flow.uuid, "me", 60)
        store.fail_next()
        connection.renew_lease(lease, 60)
        with pytest.raises(exceptions.StorageFailure, match="save_changes"):
            connection.save_changes(flow, flow, lease=lease)
        store.fail_next(method="renew_lease")
        connection.save_changes(flow, flow, lease=lease)
        with pytest.raises(exceptions.StorageFailure, match="renew_lease"):
            connection.renew_lease(lease, 60)
        assert store.writes == ["save_logbook", "acquire_lease", "save_changes", "save_changes"]


def test_delay_applies_to_writes_but_not_to_reads() -> None:
    with FaultyBackend(delay=0.05) as store:
        began = time.monotonic()
        save(store, "a", "b")
        written = time.monotonic()
        with store.get_connection() as connection:
            for _ in range(100):
                list(connection.get_logbooks())
        assert written - began >= 0.1
        assert time.monotonic() - written < 100 * 0.05


def test_run_fails_after_three_refusals_and_continues_when_repeated() -> None:
    """The engine omits its pause between attempts."""
    with FaultyBackend() as store:
        engine = engines.load(linear_flow.Flow("f").add(Step("a"), Step("b")), backend=store)
        began = time.monotonic()
        store.fail_next(2, method="save_changes")
        store.fail_next(3, method="save_changes", skip=5)
        with pytest.raises(exceptions.StorageFailure, match="injected by the test"):
            engine.run()
        assert time.monotonic() - began < 4.0
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"method": "save_change"}, "method must be one of .*did you mean 'save_changes'"),
        ({"method": "get_logbook"}, "got 'get_logbook'"),
        ({"times": 0}, "times must be .* got 0"),
        ({"times": True}, "times must be .* got True"),
        ({"skip": -1}, "skip must be .* got -1"),
        ({"every": 0}, "every must be .* got 0"),
        ({"every": 1.5}, "every must be .* got 1.5"),
    ],
)
def test_invalid_fault_options_are_refused(wrong: dict[str, Any], error: str) -> None:
    store = FaultyBackend()
    for ask in (store.fail_next, store.lose_answer):
        with pytest.raises(ValueError, match=error):
            ask(**wrong)
    assert save(store, "a") == []


def test_invalid_delay_is_refused() -> None:
    for wrong in (-1.0, float("nan"), "1", True, None):
        with pytest.raises(ValueError, match="delay must be a number"):
            FaultyBackend(delay=wrong)  # type: ignore[arg-type]
