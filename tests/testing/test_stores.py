"""The store of tests: which writes fail, and what is written nevertheless."""

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
    """Of the books in it, by whatever way."""
    with store.inner.get_connection() as connection:
        return sorted(book.name for book in connection.get_logbooks())


def save(store: FaultyBackend, *books: str) -> list[str]:
    """Which of these books could not be saved."""
    failed = []
    with store.get_connection() as connection:
        for name in books:
            try:
                connection.save_logbook(a_book(name))
            except exceptions.StorageFailure:
                failed.append(name)
    return failed


def test_without_faults_it_is_the_store_behind_it(tmp_path: Path) -> None:
    """With its options, and with what it can keep."""
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


def test_what_not_every_store_keeps_is_read_as_well() -> None:
    book = a_book()
    (flow,) = book
    (atom,) = flow
    with FaultyBackend() as store, store.get_connection() as connection:
        connection.save_logbook(book)
        connection.save_changes(flow, (), logs=[models.LogChunk(atom.uuid, 1, -1, ())])
        assert [chunk.atom_uuid for chunk in connection.get_logs(flow.uuid)] == [atom.uuid]


def test_refused_write_changes_nothing_and_the_next_goes_well() -> None:
    with FaultyBackend() as store:
        fault = store.fail_next()
        assert save(store, "a", "b") == ["a"]
        assert names(store) == ["b"] and fault.count == 1


def test_write_whose_answer_is_lost_counts() -> None:
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
def test_which_writes_fail(options: dict[str, Any], failed: str) -> None:
    for written in (False, True):
        with FaultyBackend() as store:
            fault = (store.lose_answer if written else store.fail_next)(**options)
            assert "".join(save(store, *"abcdef")) == failed
            assert fault.count == len(failed)
            assert names(store) == sorted(set("abcdef") - (set() if written else set(failed)))


def test_fault_is_over_at_the_end_of_its_block() -> None:
    with FaultyBackend() as store:
        with store.fail_next(None) as fault:
            assert save(store, "a") == ["a"]
        assert save(store, "a") == [] and fault.count == 1
        store.lose_answer(None)
        store.fail_next(None, method="save_logbook")
        store.delay = 60.0
        store.heal()
        assert save(store, "b") == [] and store.delay == 0.0


def test_of_two_faults_refusal_wins() -> None:
    with FaultyBackend() as store:
        store.lose_answer()
        store.fail_next()
        assert save(store, "a") == ["a"] and names(store) == []


def test_write_that_the_store_refuses_is_refused_whether_its_answer_is_lost_or_not() -> None:
    with FaultyBackend() as store, store.get_connection() as connection:
        store.lose_answer(None)
        with pytest.raises(exceptions.NotFound):
            connection.destroy_flow("none")


def test_writes_are_told_by_name_and_renewals_count_only_by_name() -> None:
    book = a_book()
    (flow,) = book
    with FaultyBackend() as store, store.get_connection() as connection:
        connection.save_logbook(book)
        lease = connection.take_lease(flow.uuid, "me", 60)
        store.fail_next()
        connection.renew_lease(lease, 60)
        with pytest.raises(exceptions.StorageFailure, match="save_changes"):
            connection.save_changes(flow, flow, lease=lease)
        store.fail_next(method="renew_lease")
        connection.save_changes(flow, flow, lease=lease)
        with pytest.raises(exceptions.StorageFailure, match="renew_lease"):
            connection.renew_lease(lease, 60)
        assert store.writes == ["save_logbook", "take_lease", "save_changes", "save_changes"]


def test_each_write_is_slow_and_no_read() -> None:
    with FaultyBackend(delay=0.05) as store:
        began = time.monotonic()
        save(store, "a", "b")
        written = time.monotonic()
        with store.get_connection() as connection:
            for _ in range(100):
                list(connection.get_logbooks())
        assert written - began >= 0.1
        assert time.monotonic() - written < 100 * 0.05


def test_three_refusals_end_a_run_and_the_next_one_goes_on() -> None:
    """Without the pause that an engine makes before it tries again."""
    with FaultyBackend() as store:
        engine = engines.load(linear_flow.Flow("f").add(Step("a"), Step("b")), backend=store)
        began = time.monotonic()
        store.fail_next(2, method="save_changes")
        store.fail_next(3, method="save_changes", skip=5)
        with pytest.raises(exceptions.StorageFailure, match="as the test wanted"):
            engine.run()
        assert time.monotonic() - began < 4.0
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"method": "save_change"}, "'save_change' is no write.*did you mean 'save_changes'"),
        ({"method": "get_logbook"}, "'get_logbook' is no write"),
        ({"times": 0}, "times is 0"),
        ({"times": True}, "times is True"),
        ({"skip": -1}, "skip is -1"),
        ({"every": 0}, "every is 0"),
        ({"every": 1.5}, "every is 1.5"),
    ],
)
def test_wrong_faults_are_refused(wrong: dict[str, Any], error: str) -> None:
    store = FaultyBackend()
    for ask in (store.fail_next, store.lose_answer):
        with pytest.raises(ValueError, match=error):
            ask(**wrong)
    assert save(store, "a") == []


def test_wrong_delay_is_refused() -> None:
    for wrong in (-1.0, float("nan"), "1", True, None):
        with pytest.raises(ValueError, match="delay is"):
            FaultyBackend(delay=wrong)  # type: ignore[arg-type]
