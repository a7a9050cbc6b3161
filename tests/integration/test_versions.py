"""Flows whose code changed since they were saved."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.reading import read_flow
from wbengine import engines, exceptions, retry, states, task
from wbengine.engines import _differences
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base, models
from wbengine.persistence.backends import _memory
from wbengine.testing import FaultyBackend

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


class Step(task.Task):
    """Task that records its executions and returns its name."""

    def __init__(self, name: str, *, version: Any = (1, 0), **more: Any) -> None:
        super().__init__(name, provides=more.pop("provides", name), **more)
        self.version = version

    def execute(self) -> str:
        RAN.append(self.name)
        return self.name

    def revert(self, result: Any, **more: Any) -> None:
        RAN.append(f"-{self.name}")


class Stops(Step):
    """Task that fails; with `never_resolve`, the flow stays at it."""

    def execute(self) -> str:
        RAN.append(self.name)
        raise RuntimeError(self.name)


class Needs(Step):
    def execute(self, a: str) -> str:  # type: ignore[override]
        RAN.append(f"{self.name} {a}")
        return self.name


def saved(
    *atoms: Any, controller: Any = None, place: base.Backend | None = None
) -> tuple[base.Backend, models.FlowDetail]:
    """Run a flow of these atoms until the last one fails; return its backend and record."""
    backend = place or FaultyBackend()
    flow = linear_flow.Flow("f", retry=controller).add(*atoms)
    engine = engines.load(flow, backend=backend, never_resolve=True)
    with pytest.raises(RuntimeError):
        engine.run()
    RAN.clear()
    return backend, read_flow(backend, engine.storage.flow_uuid)


def loaded(
    kept: tuple[base.Backend, models.FlowDetail], *atoms: Any, flow: Any = None, **options: Any
) -> Any:
    flow = flow or linear_flow.Flow("f").add(*atoms)
    return engines.load(flow, backend=kept[0], flow_detail=kept[1], never_resolve=True, **options)


def reset_and_run(engine: Any) -> None:
    engine.prepare()
    engine.reset(failed_only=True)
    engine.run()


def writes(kept: tuple[base.Backend, models.FlowDetail]) -> int:
    """Return the number of saves."""
    assert isinstance(kept[0], FaultyBackend)
    return kept[0].writes.count("save_changes")


def rows(kept: tuple[base.Backend, models.FlowDetail]) -> dict[str, models.AtomDetail]:
    with kept[0].get_connection() as connection:
        return {atom.name: atom for atom in connection.get_atoms_for_flow(kept[1].uuid)}


def test_unchanged_flow_has_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    kept = saved(Step("a"), Stops("b"))
    before = writes(kept)
    engine = loaded(kept, Step("a"), Step("b"), migrate=pytest.fail)
    engine.prepare()
    assert engine.difference is None and not caplog.messages
    assert writes(kept) == before
    fresh = engines.load(linear_flow.Flow("g").add(Step("a")), migrate=pytest.fail)
    assert fresh.difference is None
    fresh.run()
    assert fresh.difference is None


def test_flow_with_changed_minor_versions_is_resumed(caplog: pytest.LogCaptureFixture) -> None:
    """The record receives the new version, and the difference is logged before any task runs."""
    kept = saved(Step("a"), Stops("b"))
    engine = loaded(kept, Step("a", version=(1, 4)), Step("b", version="1.0.1"))
    assert [str(c) for c in engine.difference.changed] == ["'a' 1.0 -> 1.4", "'b' 1.0 -> 1.0.1"]
    assert not caplog.messages and not RAN
    engine.prepare()
    assert caplog.messages == [
        "Flow 'f' differs from its records: changed 'a' 1.0 -> 1.4, 'b' 1.0 -> 1.0.1"
    ]
    assert caplog.records[0].levelno == logging.WARNING and not RAN
    assert {name: row.version for name, row in rows(kept).items()} == {"a": "1.4", "b": "1.0.1"}
    reset_and_run(engine)
    assert RAN == ["b"] and len(caplog.messages) == 1
    assert engine.difference.changed[0].name == "a"


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ((2, 0), "now has version '2.0', which differs in its first number"),
        ((0, 9), "differs in its first number"),
        ("next", "cannot be compared: 'next' must be like '1.0'"),
    ],
    ids=["next major", "earlier major", "unparsable"],
)
def test_flow_with_changed_major_version_is_refused(version: Any, why: str) -> None:
    """The error contains the atom, both versions and a hint; no task runs and no record changes."""
    kept = saved(Step("a"), Stops("b"))
    before = {name: row.to_dict() for name, row in rows(kept).items()}
    written = writes(kept)
    engine = loaded(kept, Step("new"), Step("a", version=version), Step("b", version=(3, 0)))
    for attempt in (engine.prepare, engine.run):
        with pytest.raises(exceptions.IncompatibleVersion, match=why) as caught:
            attempt()
        assert all(
            word in str(caught.value)
            for word in ("Atom 'a'", "version '1.0'", "migrate=", "old code", "1 more: 'b' 1.0")
        )
    assert not RAN and writes(kept) == written
    assert {name: row.to_dict() for name, row in rows(kept).items()} == before
    assert engine.difference.added == ("new",)


def test_unparsable_version_matches_only_itself() -> None:
    """An atom without a stored version accepts any version."""
    kept = saved(Step("a", version="blue"), Stops("b"))
    kept[1].find(rows(kept)["b"].uuid).version = None  # type: ignore[union-attr]
    assert loaded(kept, Step("a", version="blue"), Step("b", version=(7,))).difference is None
    with pytest.raises(exceptions.IncompatibleVersion, match=r"'blue' must be like '1\.0'"):
        loaded(kept, Step("a"), Step("b")).prepare()


def test_reverted_flow_runs_again_with_any_version() -> None:
    backend = _memory.MemoryBackend()
    engine = engines.load(linear_flow.Flow("f").add(Step("a"), Stops("b")), backend=backend)
    with pytest.raises(RuntimeError):
        engine.run()
    kept = backend, engine.storage.flow_detail
    RAN.clear()
    loaded(kept, Step("a", version=(2, 0)), Step("b")).run()
    assert RAN == ["a", "b"] and rows(kept)["a"].version == "2.0"


def test_added_atoms_run_and_records_of_removed_atoms_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = saved(Step("a"), Step("b"), Stops("c"))
    engine = loaded(kept, Step("a"), Step("x"), Step("c"))
    reset_and_run(engine)
    assert RAN == ["x", "c"]
    assert (engine.difference.added, engine.difference.removed) == (("x",), ("b",))
    (told,) = caplog.messages
    assert told == (
        "Flow 'f' differs from its records: added 'x'; removed 'b' (SUCCESS: no atom"
        " receives its result, and it is not reverted)"
    )
    assert set(rows(kept)) == {"a", "b", "c", "x"}
    assert engine.storage.get("b") == "b"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (states.RUNNING, "its result is ignored"),
        (states.REVERTING, "the result of its reversion is ignored"),
        (states.FAILURE, "its failure remains a failure of the flow"),
        (states.PENDING, ""),
    ],
)
def test_difference_describes_state_of_removed_atom(state: str, words: str) -> None:
    kept = saved(Step("a"), Stops("b"))
    for record in kept[1]:
        if record.name == "b" and state != states.FAILURE:
            record.reset(state)
    text = str(loaded(kept, Step("a")).difference)
    assert words in text
    assert text.startswith("removed 'b' (") if words else text == "removed 'b'"


def test_difference_suggests_likely_renames() -> None:
    kept = saved(Step("old.place.Charge"), Step("send_mail"), Stops("zzz"))
    found = loaded(kept, Step("new.Charge"), Step("send_mails"), Step("q")).difference
    assert found.likely == {"old.place.Charge": "new.Charge", "send_mail": "send_mails"}
    assert "probably renamed 'old.place.Charge' to 'new.Charge', 'send_mail'" in str(found)
    assert "zzz" in repr(found)


def test_long_list_of_names_in_difference_is_cut() -> None:
    kept = saved(*[Step(f"old{n}") for n in range(90)], Stops("z"))
    found = loaded(kept, *[Step(f"{n}new") for n in range(90)], Step("z")).difference
    assert "'2new', '3new', '4new', '5new', '6new', '7new' and 82 more" in str(found)
    assert not found.likely


def test_renamed_atoms_keep_their_records_and_histories(caplog: pytest.LogCaptureFixture) -> None:
    kept = saved(Step("a"), Stops("b"), controller=retry.Times(3, "r"))
    history = next(record for record in kept[1] if record.name == "r")
    failure = rows(kept)["b"].failure
    assert failure is not None
    history.results[-1][1]["b"] = failure
    with kept[0].get_connection() as connection:
        connection.update_atom_details(history)

    def migrate(found: _differences.Difference) -> None:
        assert found.likely == {}
        found.rename("a", "first")
        found.rename("b", "second")

    flow = linear_flow.Flow("f", retry=retry.Times(3, "r"))
    flow.add(Step("first", version=(1, 1)), Step("second"))
    engine = loaded(kept, flow=flow, migrate=migrate)
    engine.prepare()
    assert engine.storage.get("first") == "a"
    assert list(engine.storage.get_failures()) == ["second"]
    assert list(engine.storage.get_retry_history("r").provided_iter()) == [1]
    assert [name for name, _ in engine.storage.get_retry_history("r").outcomes_iter()] == ["second"]
    reset_and_run(engine)
    assert RAN == ["second"]
    found = rows(kept)
    assert set(found) == {"first", "second", "r"}
    assert found["first"].version == "1.1" and found["second"].attempt == 2
    again = loaded((kept[0], engine.storage.flow_detail), flow=flow, migrate=pytest.fail)
    assert again.difference is None


INVALID_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unknown record": (lambda d: d.rename("nope", "x"), "'nope' must be a record that has no atom"),
    "misspelt record": (
        lambda d: d.rename("gon", "x"),
        "'gon' must be a record .* .did you mean 'gone'",
    ),
    "existing atom": (lambda d: d.rename("gone", "a"), "'a' must be an atom that has no record"),
    "another kind": (lambda d: d.rename("gone", "r"), "'gone' is recorded as a task, but 'r' is"),
    "accept of new atom": (lambda d: d.accept("x"), "Flow 'f' has no record of atom 'x'"),
    "forget of removed atom": (lambda d: d.forget("gone"), "no record of atom 'gone'"),
    "result of failed atom": (
        lambda d: d.accept("b", 1),
        "'b' has no result that can be replaced: it is FAILURE",
    ),
    "record of unknown atom": (lambda d: d.record("c"), "no record of atom 'c'"),
    "second rename": (
        lambda d: d.rename("gone", "x") or d.rename("gone", "y"),
        "'gone' must be a r",
    ),
    "accept after rename": (
        lambda d: d.rename("gone", "x") or d.accept("y"),
        "no record of atom 'y'",
    ),
    "exception": (lambda d: 1 / 0, "division"),
}


@pytest.mark.parametrize("name", INVALID_CALLS)
def test_invalid_migrate_calls_raise_and_change_nothing(name: str) -> None:
    call, words = INVALID_CALLS[name]
    kept = saved(Step("a"), Step("gone"), Stops("b"))
    before = [row.to_dict() for row in rows(kept).values()]
    flow = linear_flow.Flow("f", retry=retry.Times(2, "r"))
    flow.add(Step("a"), Step("x"), Step("y"), Step("b"))
    engine = loaded(kept, flow=flow, migrate=call)
    with pytest.raises(ZeroDivisionError if name == "exception" else ValueError, match=words):
        engine.prepare()
    assert [row.to_dict() for row in rows(kept).values()] == before
    with pytest.raises(TypeError, match="migrate must be a function"):
        loaded(kept, Step("a"), migrate="yes")


def test_accepted_result_can_be_replaced() -> None:
    """Later atoms receive the replaced result."""
    kept = saved(Step("a", provides="a"), Stops("b"))

    def migrate(found: _differences.Difference) -> None:
        old = found.record("a")
        found.accept("a", results=old.results.upper())
        old.results = "a copy"

    engine = loaded(kept, Step("a", version=(2, 0)), Needs("b"), migrate=migrate)
    reset_and_run(engine)
    assert RAN == ["b A"]
    assert (rows(kept)["a"].results, rows(kept)["a"].version) == ("A", "2.0")


def test_renamed_atom_of_new_major_version_must_be_accepted() -> None:
    kept = saved(Step("a"), Stops("b"))
    now = [Step("aa", version=(2, 0)), Step("b")]
    with pytest.raises(exceptions.IncompatibleVersion, match="Atom 'aa'"):
        loaded(kept, *now, migrate=lambda found: found.rename("a", "aa")).prepare()

    def migrate(found: _differences.Difference) -> None:
        found.rename("a", "aa")
        found.record("a").results = "of a copy"
        found.accept("aa")

    engine = loaded(kept, *now, migrate=migrate)
    reset_and_run(engine)
    assert RAN == ["b"] and rows(kept)["aa"].results == "a"


def test_history_of_retry_can_be_replaced() -> None:
    kept = saved(Stops("b"), controller=retry.ForEach(["x", "y"], "r", provides="v"))

    def flow(version: Any) -> Any:
        controller = retry.ForEach(["x", "y"], "r", provides="v")
        controller.version = version
        return linear_flow.Flow("f", retry=controller).add(Step("b"))

    for wrong in ("x", [1], [("x", {"b": 1})]):
        with pytest.raises(ValueError, match="history of a retry must be a list of pairs"):
            loaded(kept, flow=flow((2,)), migrate=lambda d: d.accept("r", wrong)).prepare()  # noqa: B023
    engine = loaded(kept, flow=flow((2,)), migrate=lambda d: d.accept("r", [("z", {})]))
    reset_and_run(engine)
    assert engine.storage.fetch("v") == "z" and RAN == ["b"]


def test_forgotten_atom_runs_again_as_next_attempt() -> None:
    """Later completed atoms stay completed."""
    kept = saved(Step("a"), Step("b"), Stops("c"))
    engine = loaded(
        kept,
        Step("a", version=(2, 0)),
        Step("b"),
        Step("c"),
        migrate=lambda found: found.forget("a"),
    )
    reset_and_run(engine)
    assert RAN == ["a", "c"]
    assert (rows(kept)["a"].attempt, rows(kept)["a"].version) == (2, "2.0")
    assert engine.storage.get_flow_state() == states.SUCCESS


@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_decisions_of_migrate_are_saved(kind: str, tmp_path: Path) -> None:
    """Another process finds no difference after the decisions are stored."""
    conf = f"{kind}:///{tmp_path / 'kept'}"
    with backends.backend(conf) as place:
        kept = saved(
            Step("a"), Step("b"), Step("c"), Step("d"), Stops("e"),
            controller=retry.Times(2, "r"), place=place,
        )  # fmt: skip

    def migrate(found: _differences.Difference) -> None:
        found.rename("a", "first")
        found.forget("b")
        found.accept("c", results=("tuple", {1: 2}))
        found.forget("d")
        with pytest.raises(exceptions.NotEncodable, match="results of 'c'"):
            found.accept("c", results=object())

    flow = linear_flow.Flow("f", retry=retry.Times(2, "r")).add(
        Step("first"),
        Step("b", version=(2, 0)),
        Step("c", version=(2, 0)),
        linear_flow.Flow("inner", retry=retry.Times(1, "d")),
        Step("e"),
    )
    with backends.backend(conf) as place:
        engine = loaded((place, kept[1]), flow=flow, migrate=migrate)
        engine.prepare()
        assert not RAN
    with backends.backend(conf) as place, place.get_connection() as connection:
        kept = place, connection.get_flow_details(kept[1].uuid)
        engine = loaded(kept, flow=flow, migrate=pytest.fail)
        assert engine.difference.removed == ("d (a task until it became a retry)",)
        reset_and_run(engine)
        assert RAN == ["b", "e"]
        found = rows(kept)
        assert {name: found[name].version for name in ("first", "b", "c", "e")} == {
            "first": "1.0", "b": "2.0", "c": "2.0", "e": "1.0",
        }  # fmt: skip
        assert found["c"].results == ("tuple", {1: 2}) and found["d"].kind == "retry"
        assert found["first"].results == "a" and found["b"].attempt == 2


def test_migrate_is_called_once_for_each_difference() -> None:
    """Neither decided differences nor removed atoms alone call it again."""
    kept = saved(Step("a"), Step("gone"), Stops("b"))
    asked: list[str] = []

    def migrate(found: _differences.Difference) -> None:
        asked.append(str(found))
        found.rename("a", "aa")

    for _ in range(2):
        engine = loaded(kept, Step("aa"), Step("b"), migrate=migrate)
        engine.prepare()
        assert engine.difference is not None and engine.difference.removed[-1:] == ("gone",)
        kept = kept[0], read_flow(kept[0], kept[1].uuid)
    assert set(asked) == {asked[0]}
    engine = loaded(kept, Step("aa"), Step("new"), Step("b"), migrate=migrate)
    reset_and_run(engine)
    assert RAN == ["new", "b"] and len(set(asked)) == 2


@pytest.mark.parametrize(("name", "shown"), [("x", "x"), ("x" * 255, "x" * 222)])
def test_atom_of_another_kind_is_refused_unless_forgotten(name: str, shown: str) -> None:
    """The record of the forgotten atom is kept under another name."""
    kept = saved(Step(name), Stops("b"))
    flow = linear_flow.Flow("f", retry=retry.Times(2, name)).add(Step("b"))
    with pytest.raises(exceptions.Duplicate, match=r"'x+' was a task.*forget"):
        loaded(kept, flow=flow).prepare()
    with pytest.raises(ValueError, match="was a task: it cannot be accepted, only forgotten"):
        loaded(kept, flow=flow, migrate=lambda found: found.accept(name)).prepare()
    engine = loaded(kept, flow=flow, migrate=lambda found: found.forget(name))
    reset_and_run(engine)
    found = rows(kept)
    assert found[name].kind == "retry" and RAN == ["b"]
    assert found[f"{shown} (a task until it became a retry)"].results == name


@pytest.mark.parametrize("seed", range(12))
def test_random_forgotten_atoms_run_once_more(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"t{n}" for n in range(12)]

    def flow(version: Any, forgotten: set[str]) -> Any:
        inner = unordered_flow.Flow("in", retry=retry.Times(2, "r")).add(
            *[Step(name, version=version if name in forgotten else (1, 0)) for name in names[4:8]]
        )
        return linear_flow.Flow("f").add(
            *[Step(n, version=version if n in forgotten else (1, 0)) for n in names[:4]],
            inner,
            *[Step(n, version=version if n in forgotten else (1, 0)) for n in names[8:]],
        )

    backend = _memory.MemoryBackend()
    first = engines.load(flow((1, 0), set()), backend=backend)
    first.run()
    RAN.clear()
    forgotten = set(chance.sample(names, chance.randint(1, 6)))

    def migrate(found: _differences.Difference) -> None:
        for change in found.changed:
            found.forget(change.name)
        if chance.random() < 0.5:
            found.forget("r")

    engine = loaded(
        (backend, first.storage.flow_detail), flow=flow((2, 0), forgotten), migrate=migrate
    )
    engine.run()
    assert sorted(RAN) == sorted(forgotten)
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_injected_values_are_not_part_of_difference() -> None:
    """The record of injected values belongs to no atom and does not count as removed."""
    kept = saved(Step("a"), Stops("b"))
    engine = loaded(kept, Step("a"), Step("b"), store={"x": 1})
    assert engine.difference is None
    engine.prepare()
    again = loaded((kept[0], engine.storage.flow_detail), Step("a"), Step("b"))
    assert again.difference is None


def test_added_atoms_do_not_run_in_reverting_flow() -> None:
    backend = _memory.MemoryBackend()
    engine = engines.load(linear_flow.Flow("f").add(Step("a"), Stops("b")), backend=backend)
    steps: Any = engine.run_iter()
    for _ in steps:
        if RAN[-1:] == ["b"] and engine.storage.get_atom_intention("a") == states.REVERT:
            steps.close()
            break
    kept = backend, engine.storage.flow_detail
    assert kept[1].state == states.SUSPENDED and "-a" not in RAN
    again = loaded(kept, Step("a"), Step("x"), Step("b"))
    with pytest.raises(RuntimeError):
        again.run()
    assert RAN[-1] == "-a" and "x" not in RAN
