"""Storage of a flow: states, results, arguments and metadata."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import exceptions, retry, states, storage, task
from wbengine._runtime import compiler
from wbengine.patterns import linear_flow
from wbengine.persistence import base, models
from wbengine.persistence.backends import _memory
from wbengine.testing import FaultyBackend
from wbengine.types import failure as ft

FAILURE = ft.Failure.from_exception(ValueError("no"))


class One(task.Task):
    default_provides = "one"

    def execute(self) -> int:
        return 1


class Pair(task.Task):
    default_provides = ("left", "right")

    def execute(self) -> Any:
        return 1, 2


def made(*atoms: Any, backend: base.Backend | None = None, **options: Any) -> storage.Storage:
    flow = linear_flow.Flow("f").add(*atoms)
    detail = base.create_flow_detail(flow, backend=backend)
    found = storage.Storage(detail, backend, **options)
    plan = compiler.compile(flow)
    found.ensure_atoms([plan.items[node] for node in plan.atoms()])  # type: ignore[misc]
    found.bind(plan, len(plan))
    return found


@pytest.fixture
def store() -> storage.Storage:
    """Storage of a flow with the task `a`."""
    return made(One("a"))


# Atoms and states.


def test_ensure_atoms_creates_each_record_once() -> None:
    store = made()
    first = store.ensure_atoms([One("a"), Pair("b")])
    assert store.ensure_atoms([Pair("b"), One("a")]) == first[::-1]
    assert store.ensure_atom(One("a")) == first[0] == store.get_atom_uuid("a")
    assert store.get_atoms_states(["a", "b"]) == dict.fromkeys("ab", ("PENDING", "EXECUTE"))
    assert len(store.flow_detail) == 2


def test_atom_state_and_intention_are_stored(store: storage.Storage) -> None:
    store.set_atom_state("a", states.RUNNING)
    store.set_atom_intention("a", states.REVERT)
    assert (store.get_atom_state("a"), store.get_atom_intention("a")) == ("RUNNING", "REVERT")


# Results.


def test_get_returns_the_result_or_failure_of_an_atom(store: storage.Storage) -> None:
    with pytest.raises(exceptions.NotFound, match="'a' has no result"):
        store.get("a")
    store.save("a", None)
    assert store.get("a") is None
    store.save("a", FAILURE, states.FAILURE)
    assert store.get("a") is FAILURE
    assert store.has_failures()
    assert store.get_failures() == {"a": FAILURE}
    assert store.get_execute_failure("a") is FAILURE
    store.save("a", "undone", states.REVERTED)
    assert store.get_revert_result("a") == "undone"
    assert store.has_failures()
    store.save("a", 1)
    assert not store.has_failures()
    with pytest.raises(exceptions.NotFound):
        store.get_revert_result("a")


def test_revert_failures_are_separate_from_execute_failures(store: storage.Storage) -> None:
    store.save("a", FAILURE, states.REVERT_FAILURE)
    assert store.get_revert_failures() == {"a": FAILURE}
    assert store.get_revert_failure("a") is FAILURE is store.get_revert_result("a")
    assert store.has_failures()
    assert store.get_execute_failures() == {}


def test_reset_deletes_the_failure_but_keeps_the_attempt(store: storage.Storage) -> None:
    store.record("a").attempt = 3
    store.save("a", FAILURE, states.FAILURE)
    store.reset("a")
    assert not store.has_failures()
    assert store.get_atom_state("a") == states.PENDING
    attempt = store.get_attempt("a")
    assert attempt is not None and attempt.attempt == 3


def test_returned_failures_do_not_change_later() -> None:
    store = made(One("a"), Pair("b"))
    store.save("a", FAILURE, states.FAILURE)
    before = store.get_execute_failures()
    assert store.get_execute_failures() is before
    store.save("b", FAILURE, states.FAILURE)
    assert list(before) == ["a"]
    assert list(store.get_execute_failures()) == ["a", "b"]


def test_retry_failures_belong_to_the_last_provided_value(store: storage.Storage) -> None:
    store.ensure_atom(retry.Times(2, "r"))
    store.save_retry_failure("r", "a", FAILURE)  # Ignored: no value was provided yet.
    store.save("r", 1)
    store.save_retry_failure("r", "a", FAILURE)
    store.save("r", 2)
    assert list(store.get_retry_history("r")) == [(1, {"a": FAILURE}), (2, {})]
    assert store.get("r") == [(1, {"a": FAILURE}), (2, {})]
    assert [name for name, _ in store.get_retry_histories()] == ["r"]
    store.cleanup_retry_history("r", states.REVERTED)
    assert len(store.get_retry_history("r")) == 0


# Values and arguments.


def test_fetch_returns_injected_or_provided_values() -> None:
    """`fetch` returns the first value, or the result of `many_handler` for all values."""
    store = made(One("a"), Pair("b"), One("c"))
    with pytest.raises(exceptions.NotFound, match="No atom has provided 'one'"):
        store.fetch("one")
    store.save("a", 1)
    store.save("c", 3)
    store.save("b", (5,))
    assert store.fetch("one") == 1
    assert store.fetch("one", many_handler=sum) == 4
    assert store.fetch("left") == 5
    assert store.fetch_all() == {"one": [1, 3], "left": 5}
    store.inject({"one": 0})
    store.inject({"hidden": 1}, transient=True)
    assert store.fetch("one") == 0
    assert store.fetch_all(len) == {"hidden": 1, "one": 3, "left": 1}
    with pytest.raises(exceptions.NotFound, match=r"'lft'.*'left'"):
        store.fetch("lft")


def test_only_injected_values_are_visible_before_bind() -> None:
    store = storage.Storage(models.FlowDetail("f"))
    store.ensure_atom(One("a"))
    asked = {"x": "x", "y": "z"}
    assert store.fetch_unsatisfied_args("a", asked) == {"x", "y"}
    assert store.fetch_unsatisfied_args("a", asked, optional_args=["y"]) == {"x"}
    store.inject_atom_args("a", {"x": 2}, transient=False)
    store.inject({"z": 3})
    assert store.fetch_unsatisfied_args("a", asked) == set()
    assert store.fetch_mapped_args(asked, "a") == {"x": 2, "y": 3}


# Progress and metadata.


def test_task_metadata_contains_its_progress() -> None:
    """Services read the progress there; it is stored only once, in separate fields."""
    backend = _memory.MemoryBackend()
    store = made(One("a"), One("b"), backend=backend)
    kept = store.record("a")
    assert kept.meta == {}
    store.update_atom_metadata("a", {"mine": 1})
    store.update_atom_metadata("a", None)
    store.set_task_progress("a", 0.5, {"step": "copying"})
    told = {"at_progress": 0.5, "details": {"step": "copying"}}
    with backend.get_connection() as connection:
        found = {atom.name: atom.meta for atom in connection.get_atoms_for_flow(store.flow_uuid)}
    assert found == {
        "a": {
            "mine": 1,
            storage.META_PROGRESS: 0.5,
            storage.META_PROGRESS_DETAILS: told,
        },
        "b": {},
    }
    store.save("b", 1)
    assert store.record("b").meta == {"progress": 1.0, "progress_details": None}
    assert kept.meta is kept.meta and kept.to_dict()["meta"] == {"mine": 1}
    store.reset("a")
    assert kept.meta == {"mine": 1}


def test_progress_in_updated_metadata_sets_the_task_progress() -> None:
    backend = _memory.MemoryBackend()
    store = made(One("a"), backend=backend)
    told = {"at_progress": 0.5, "details": {"step": "copying"}}
    store.update_atom_metadata("a", {"mine": 1, "progress": 0.5, "progress_details": told})
    assert (store.get_task_progress("a"), store.get_task_progress_details("a")) == (0.5, told)
    with backend.get_connection() as connection:
        [found] = connection.get_atoms_for_flow(store.flow_uuid)
    assert found.meta == {"mine": 1, "progress": 0.5, "progress_details": told}
    with pytest.raises(TypeError, match="progress of 'a' must be a number, got 'half'"):
        store.update_atom_metadata("a", {"mine": 2, "progress": "half"})
    assert store.record("a").meta == found.meta


def test_atom_version_is_stored_as_text() -> None:
    atom = One("a")
    atom.version = (3, 11)
    assert made(atom).record("a").version == "3.11"


def test_progress_follows_the_state_unless_reported(store: storage.Storage) -> None:
    assert store.get_task_progress("a") == 0.0
    store.save("a", 1)
    assert store.get_task_progress("a") == 1.0
    store.set_task_progress("a", 0.3, {"bytes": 7})
    assert store.get_task_progress("a") == 0.3
    assert store.get_task_progress_details("a") == {"at_progress": 0.3, "details": {"bytes": 7}}


def test_invalid_flow_state_change_raises_invalid_state() -> None:
    store = made()
    assert store.get_flow_state() == states.PENDING
    assert store.change_flow_state(states.RUNNING) == (True, states.PENDING)
    assert store.change_flow_state(states.RUNNING) == (False, states.RUNNING)
    with pytest.raises(exceptions.InvalidState):
        store.change_flow_state(states.PENDING)
    assert store.get_flow_state() == states.RUNNING


# Writing.


def test_batch_writes_changed_records_once() -> None:
    backend = FaultyBackend()
    store = made(*[One(f"t{n}") for n in range(10)], backend=backend)
    before = backend.writes.count("save_changes")
    with store.writer.mutex, store.batch():
        for _ in range(3):
            store.set_atom_state("t1", states.RUNNING)
            store.save("t2", 1)
        assert backend.writes.count("save_changes") == before
        assert store.writer.flush()
        assert not store.writer.flush()
        store.set_flow_state(states.RUNNING)
    assert backend.writes.count("save_changes") == before + 2


class Flaky(_memory.MemoryBackend):
    """Backend whose next `failing` connections fail."""

    failing = 0
    write_pause = 0.0

    def get_connection(self) -> _memory.MemoryConnection:
        if self.failing:
            self.failing -= 1
            raise exceptions.StorageFailure("not now")
        return super().get_connection()


def test_failed_write_is_retried_and_included_in_the_next() -> None:
    """The third failure is raised, and the next change includes the failed write."""
    backend = Flaky()
    store = made(One("a"), backend=backend)
    backend.failing = 2
    store.set_atom_state("a", states.RUNNING)
    with pytest.raises(exceptions.StorageFailure), store.writer.mutex, store.batch():
        store.set_atom_state("a", states.SUCCESS)
        backend.failing = 3
    with backend.get_connection() as connection:
        assert connection.get_lease(store.flow_uuid) is None
        assert connection.get_atom_details(store.get_atom_uuid("a")).state == states.RUNNING
        store.set_task_progress("a", 0.5)
        assert connection.get_atom_details(store.get_atom_uuid("a")).state == states.SUCCESS
