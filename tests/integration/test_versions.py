"""A flow whose code changed goes on where that is safe, and says why not where it is not."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wbengine import engines, exceptions, retry, states, task
from wbengine.engines import differences
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base, models
from wbengine.persistence.backends import memory
from wbengine.testing import FaultyBackend

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


class Step(task.Task):
    """Notes that it ran, and returns its name."""

    def __init__(self, name: str, *, version: Any = (1, 0), **more: Any) -> None:
        super().__init__(name, provides=more.pop("provides", name), **more)
        self.version = version

    def execute(self) -> str:
        RAN.append(self.name)
        return self.name

    def revert(self, result: Any, **more: Any) -> None:
        RAN.append(f"-{self.name}")


class Stops(Step):
    """Fails the first time; with `never_resolve` the flow stays where it is."""

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
    """What is kept of a flow of these atoms that stopped where the last one failed."""
    backend = place or FaultyBackend()
    flow = linear_flow.Flow("f", retry=controller).add(*atoms)
    engine = engines.load(flow, backend=backend, never_resolve=True)
    with pytest.raises(RuntimeError):
        engine.run()
    RAN.clear()
    with backend.get_connection() as connection:
        return backend, connection.get_flow_details(engine.storage.flow_uuid)


def loaded(
    kept: tuple[base.Backend, models.FlowDetail], *atoms: Any, flow: Any = None, **options: Any
) -> Any:
    flow = flow or linear_flow.Flow("f").add(*atoms)
    return engines.load(flow, backend=kept[0], flow_detail=kept[1], never_resolve=True, **options)


def go_on(engine: Any) -> None:
    engine.prepare()
    engine.reset(failed_only=True)
    engine.run()


def writes(kept: tuple[base.Backend, models.FlowDetail]) -> int:
    """How many turns were written."""
    assert isinstance(kept[0], FaultyBackend)
    return kept[0].writes.count("save_changes")


def rows(kept: tuple[base.Backend, models.FlowDetail]) -> dict[str, models.AtomDetail]:
    with kept[0].get_connection() as connection:
        return {atom.name: atom for atom in connection.get_atoms_for_flow(kept[1].uuid)}


def test_the_same_flow_differs_in_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """No difference, no line, no write more."""
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


def test_minor_versions_resume(caplog: pytest.LogCaptureFixture) -> None:
    """The record learns the version; the difference is told before anything runs."""
    kept = saved(Step("a"), Stops("b"))
    engine = loaded(kept, Step("a", version=(1, 4)), Step("b", version="1.0.1"))
    assert [str(c) for c in engine.difference.changed] == ["'a' 1.0 -> 1.4", "'b' 1.0 -> 1.0.1"]
    assert not caplog.messages and not RAN
    engine.prepare()
    assert caplog.messages == [
        "Flow 'f' is not what its records were made by: changed 'a' 1.0 -> 1.4, 'b' 1.0 -> 1.0.1"
    ]
    assert caplog.records[0].levelno == logging.WARNING and not RAN
    assert {name: row.version for name, row in rows(kept).items()} == {"a": "1.4", "b": "1.0.1"}
    go_on(engine)
    assert RAN == ["b"] and len(caplog.messages) == 1
    assert engine.difference.changed[0].name == "a"


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ((2, 0), "now of version '2.0', which has another first number"),
        ((0, 9), "another first number"),
        ("next", "cannot be compared, for 'next' is not like '1.0'"),
    ],
)
def test_major_versions_do_not(version: Any, why: str) -> None:
    """The error says which atom, both versions, and what to do; nothing ran or was written."""
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


def test_versions_that_cannot_be_read() -> None:
    """A stored one that is no version matches only itself; one never stored is taken over."""
    kept = saved(Step("a", version="blue"), Stops("b"))
    kept[1].find(rows(kept)["b"].uuid).version = None  # type: ignore[union-attr]
    assert loaded(kept, Step("a", version="blue"), Step("b", version=(7,))).difference is None
    with pytest.raises(exceptions.IncompatibleVersion, match=r"for 'blue' is not like '1\.0'"):
        loaded(kept, Step("a"), Step("b")).prepare()


def test_what_was_reverted_starts_anew_under_any_version() -> None:
    """Nothing of what was saved is used."""
    backend = memory.MemoryBackend()
    engine = engines.load(linear_flow.Flow("f").add(Step("a"), Stops("b")), backend=backend)
    with pytest.raises(RuntimeError):
        engine.run()
    kept = backend, engine.storage.flow_detail
    RAN.clear()
    loaded(kept, Step("a", version=(2, 0)), Step("b")).run()
    assert RAN == ["a", "b"] and rows(kept)["a"].version == "2.0"


def test_atoms_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    """New ones run, the records of old ones stay."""
    kept = saved(Step("a"), Step("b"), Stops("c"))
    engine = loaded(kept, Step("a"), Step("x"), Step("c"))
    go_on(engine)
    assert RAN == ["x", "c"]
    assert (engine.difference.added, engine.difference.removed) == (("x",), ("b",))
    (told,) = caplog.messages
    assert told == (
        "Flow 'f' is not what its records were made by: added 'x'; removed 'b' (SUCCESS: nobody is"
        " given its result, or undoes it)"
    )
    assert set(rows(kept)) == {"a", "b", "c", "x"}
    assert engine.storage.get("b") == "b"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (states.RUNNING, "nobody waits for what it still does"),
        (states.REVERTING, "nobody waits for the end of that"),
        (states.FAILURE, "its failure stays one of the flow's"),
        (states.PENDING, ""),
    ],
)
def test_what_is_left_of_an_atom_that_is_gone(state: str, words: str) -> None:
    kept = saved(Step("a"), Stops("b"))
    for record in kept[1]:
        if record.name == "b" and state != states.FAILURE:
            record.reset(state)
    text = str(loaded(kept, Step("a")).difference)
    assert words in text
    assert text.startswith("removed 'b' (") if words else text == "removed 'b'"


def test_names_that_look_alike_are_told() -> None:
    """A class that moved to another module, and near names; the pairs are only a guess."""
    kept = saved(Step("old.place.Charge"), Step("send_mail"), Stops("zzz"))
    found = loaded(kept, Step("new.Charge"), Step("send_mails"), Step("q")).difference
    assert found.likely == {"old.place.Charge": "new.Charge", "send_mail": "send_mails"}
    assert "probably renamed 'old.place.Charge' to 'new.Charge', 'send_mail'" in str(found)
    assert "zzz" in repr(found)


def test_many_names_are_cut() -> None:
    kept = saved(*[Step(f"old{n}") for n in range(90)], Stops("z"))
    found = loaded(kept, *[Step(f"{n}new") for n in range(90)], Step("z")).difference
    assert "'2new', '3new', '4new', '5new', '6new', '7new' and 82 more" in str(found)
    assert not found.likely


def test_renaming(caplog: pytest.LogCaptureFixture) -> None:
    """What was done under the old name is done; histories of retries know the new one."""
    kept = saved(Step("a"), Stops("b"), controller=retry.Times(3, "r"))
    history = next(record for record in kept[1] if record.name == "r")
    failure = rows(kept)["b"].failure
    assert failure is not None
    history.results[-1][1]["b"] = failure
    with kept[0].get_connection() as connection:
        connection.update_atom_details(history)

    def migrate(found: differences.Difference) -> None:
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
    go_on(engine)
    assert RAN == ["second"]
    found = rows(kept)
    assert set(found) == {"first", "second", "r"}
    assert found["first"].version == "1.1" and found["second"].attempt == 2
    again = loaded((kept[0], engine.storage.flow_detail), flow=flow, migrate=pytest.fail)
    assert again.difference is None


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda d: d.rename("nope", "x"), ValueError, "'nope' is not a record without an atom"),
        (
            lambda d: d.rename("gon", "x"),
            ValueError,
            "'gon' is not a record .* .did you mean 'gone'",
        ),
        (lambda d: d.rename("gone", "a"), ValueError, "'a' is not an atom without a record"),
        (lambda d: d.rename("gone", "r"), ValueError, "'gone' is recorded as a task, 'r' is a ret"),
        (lambda d: d.accept("x"), ValueError, "No atom 'x' has a record in flow 'f'"),
        (lambda d: d.forget("gone"), ValueError, "No atom 'gone' has a record"),
        (lambda d: d.accept("b", 1), ValueError, "'b' has no result to be replaced: it is FAILURE"),
        (lambda d: d.record("c"), ValueError, "No atom 'c' has a record"),
        (lambda d: d.rename("gone", "x") or d.rename("gone", "y"), ValueError, "'gone' is not a r"),
        (lambda d: d.rename("gone", "x") or d.accept("y"), ValueError, "No atom 'y' has a record"),
        (lambda d: 1 / 0, ZeroDivisionError, "division"),
    ],
)
def test_wrong_hooks(call: Callable[[Any], Any], error: Any, words: str) -> None:
    """They say what is wrong, and nothing has changed."""
    kept = saved(Step("a"), Step("gone"), Stops("b"))
    before = [row.to_dict() for row in rows(kept).values()]
    flow = linear_flow.Flow("f", retry=retry.Times(2, "r"))
    flow.add(Step("a"), Step("x"), Step("y"), Step("b"))
    engine = loaded(kept, flow=flow, migrate=call)
    with pytest.raises(error, match=words):
        engine.prepare()
    assert [row.to_dict() for row in rows(kept).values()] == before
    with pytest.raises(TypeError, match="Option migrate takes a function"):
        loaded(kept, Step("a"), migrate="yes")


def test_accepting_and_editing() -> None:
    """What comes after is given what the hook made of the result."""
    kept = saved(Step("a", provides="a"), Stops("b"))

    def migrate(found: differences.Difference) -> None:
        old = found.record("a")
        found.accept("a", results=old.results.upper())
        old.results = "a copy"

    engine = loaded(kept, Step("a", version=(2, 0)), Needs("b"), migrate=migrate)
    go_on(engine)
    assert RAN == ["b A"]
    assert (rows(kept)["a"].results, rows(kept)["a"].version) == ("A", "2.0")


def test_accepting_as_it_is_and_renamed() -> None:
    """A renamed atom of another major version has to be accepted under its new name."""
    kept = saved(Step("a"), Stops("b"))
    now = [Step("aa", version=(2, 0)), Step("b")]
    with pytest.raises(exceptions.IncompatibleVersion, match="Atom 'aa'"):
        loaded(kept, *now, migrate=lambda found: found.rename("a", "aa")).prepare()

    def migrate(found: differences.Difference) -> None:
        found.rename("a", "aa")
        found.record("a").results = "of a copy"
        found.accept("aa")

    engine = loaded(kept, *now, migrate=migrate)
    go_on(engine)
    assert RAN == ["b"] and rows(kept)["aa"].results == "a"


def test_a_history_can_be_edited() -> None:
    kept = saved(Stops("b"), controller=retry.ForEach(["x", "y"], "r", provides="v"))

    def flow(version: Any) -> Any:
        controller = retry.ForEach(["x", "y"], "r", provides="v")
        controller.version = version
        return linear_flow.Flow("f", retry=controller).add(Step("b"))

    for wrong in ("x", [1], [("x", {"b": 1})]):
        with pytest.raises(ValueError, match="history of a retry is a list of pairs"):
            loaded(kept, flow=flow((2,)), migrate=lambda d: d.accept("r", wrong)).prepare()  # noqa: B023
    engine = loaded(kept, flow=flow((2,)), migrate=lambda d: d.accept("r", [("z", {})]))
    go_on(engine)
    assert engine.storage.fetch("v") == "z" and RAN == ["b"]


def test_forgetting_runs_anew() -> None:
    """As the next attempt; what comes after it and is done stays done."""
    kept = saved(Step("a"), Step("b"), Stops("c"))
    engine = loaded(
        kept,
        Step("a", version=(2, 0)),
        Step("b"),
        Step("c"),
        migrate=lambda found: found.forget("a"),
    )
    go_on(engine)
    assert RAN == ["a", "c"]
    assert (rows(kept)["a"].attempt, rows(kept)["a"].version) == (2, "2.0")
    assert engine.storage.get_flow_state() == states.SUCCESS


@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_decisions_last(kind: str, tmp_path: Path) -> None:
    """What the hook decided is on disk: whoever reads it from there finds nothing to decide."""
    conf = f"{kind}:///{tmp_path / 'kept'}"
    with backends.backend(conf) as place:
        kept = saved(
            Step("a"), Step("b"), Step("c"), Step("d"), Stops("e"),
            controller=retry.Times(2, "r"), place=place,
        )  # fmt: skip

    def migrate(found: differences.Difference) -> None:
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
        go_on(engine)
        assert RAN == ["b", "e"]
        found = rows(kept)
        assert {name: found[name].version for name in ("first", "b", "c", "e")} == {
            "first": "1.0", "b": "2.0", "c": "2.0", "e": "1.0",
        }  # fmt: skip
        assert found["c"].results == ("tuple", {1: 2}) and found["d"].kind == "retry"
        assert found["first"].results == "a" and found["b"].attempt == 2


def test_a_hook_is_asked_once() -> None:
    """Not again about what was settled, not about what is only gone; nor does it fail then."""
    kept = saved(Step("a"), Step("gone"), Stops("b"))
    asked: list[str] = []

    def migrate(found: differences.Difference) -> None:
        asked.append(str(found))
        found.rename("a", "aa")

    for _ in range(2):
        engine = loaded(kept, Step("aa"), Step("b"), migrate=migrate)
        engine.prepare()
        assert engine.difference is not None and engine.difference.removed[-1:] == ("gone",)
        with kept[0].get_connection() as connection:
            kept = kept[0], connection.get_flow_details(kept[1].uuid)
    assert set(asked) == {asked[0]}
    engine = loaded(kept, Step("aa"), Step("new"), Step("b"), migrate=migrate)
    go_on(engine)
    assert RAN == ["new", "b"] and len(set(asked)) == 2


def test_another_kind() -> None:
    """Refused under its name, unless it is forgotten: then the old record stays under another."""
    kept = saved(Step("x"), Stops("b"))
    flow = linear_flow.Flow("f", retry=retry.Times(2, "x")).add(Step("b"))
    with pytest.raises(exceptions.Duplicate, match=r"'x' was a task.*forget"):
        loaded(kept, flow=flow).prepare()
    with pytest.raises(ValueError, match="was a task; that can be forgotten, not accepted"):
        loaded(kept, flow=flow, migrate=lambda found: found.accept("x")).prepare()
    engine = loaded(kept, flow=flow, migrate=lambda found: found.forget("x"))
    go_on(engine)
    found = rows(kept)
    assert found["x"].kind == "retry" and RAN == ["b"]
    assert found["x (a task until it became a retry)"].results == "x"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_forgotten_runs_once_more(seed: int) -> None:
    """Random parts of a flow that came to its end: they run again, the others do not."""
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

    backend = memory.MemoryBackend()
    first = engines.load(flow((1, 0), set()), backend=backend)
    first.run()
    RAN.clear()
    forgotten = set(chance.sample(names, chance.randint(1, 6)))

    def migrate(found: differences.Difference) -> None:
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


def test_the_hook_sees_nothing_of_what_is_injected() -> None:
    """The record of injected values belongs to no atom, and is no removed one."""
    kept = saved(Step("a"), Stops("b"))
    engine = loaded(kept, Step("a"), Step("b"), store={"x": 1})
    assert engine.difference is None
    engine.prepare()
    again = loaded((kept[0], engine.storage.flow_detail), Step("a"), Step("b"))
    assert again.difference is None


def test_what_is_undone_when_atoms_were_added() -> None:
    """New ones in a flow that is being reverted do not run."""
    backend = memory.MemoryBackend()
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
