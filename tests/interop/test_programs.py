"""What programs that were written for TaskFlow rely on: each test runs over both."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest

Load = Callable[[str], Any]


@pytest.fixture(params=["taskflow", "wbengine"])
def load(request: pytest.FixtureRequest) -> Load:
    """Import a module of TaskFlow, or its twin."""
    if request.param == "taskflow":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it imports is deprecated
            importlib.import_module("taskflow.engines.action_engine.engine")
    return lambda name: importlib.import_module(f"{request.param}.{name}")


def failing(load: Load, provides: Any = None) -> Any:
    """A task that fails."""

    def fail() -> None:
        raise LookupError("lost")

    return load("task").FunctorTask(fail, name="fails", provides=provides)


def run_in_vain(load: Load, *members: Any) -> Any:
    """The engine of a flow that failed."""
    flow = load("patterns.linear_flow").Flow("f").add(*members)
    engine = load("engines").load(flow)
    with pytest.raises(LookupError, match="lost"):
        engine.run()
    return engine


def test_any_listener_of_a_task_hears_events_that_are_not_listed(load: Load) -> None:
    class Talks(load("task").Task):  # type: ignore[misc]
        def execute(self) -> None:
            self.notifier.notify("mine", {"n": 1})

    heard = []
    talks = Talks()
    talks.notifier.register("*", lambda event, details: heard.append((event, details)))
    load("engines").run(load("patterns.linear_flow").Flow("f").add(talks))
    assert ("mine", {"n": 1}) in heard
    with pytest.raises(ValueError, match="mine"):
        talks.notifier.register("mine", print)


@pytest.mark.parametrize(("provides", "names"), [("x", ["x"]), (("x", "y"), []), ({"x"}, [])])
def test_failure_is_fetched_where_a_name_stands_for_the_whole_result(
    load: Load, provides: Any, names: list[str]
) -> None:
    storage = run_in_vain(load, failing(load, provides)).storage
    assert list(storage.fetch_all()) == names
    if not names:
        with pytest.raises(load("exceptions").NotFound):
            storage.fetch("x")
        return
    for found in (storage.fetch("x"), storage.fetch_all()["x"]):
        assert isinstance(found, load("types.failure").Failure)
        assert (LookupError, "lost") == (type(found.exception), found.exception_str)


def test_progress_details_stay_when_a_task_is_reverted(load: Load) -> None:
    class Talks(load("task").Task):  # type: ignore[misc]
        def execute(self) -> None:
            self.notifier.notify("update_progress", {"progress": 0.5, "at": "disk 1"})

    storage = run_in_vain(load, Talks(name="t"), failing(load)).storage
    told = storage.get_task_progress_details("t")
    assert told == {"at_progress": 0.5, "details": {"at": "disk 1"}}
    assert (storage.get_atom_state("t"), storage.get_task_progress("t")) == ("REVERTED", 1.0)


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_overridden_update_progress_hears_begin_and_end(load: Load, engine: str) -> None:
    heard = []

    class Hears(load("task").Task):  # type: ignore[misc]
        def execute(self) -> None:
            self.update_progress(0.5)

        def update_progress(self, progress: float) -> None:
            heard.append(progress)
            super().update_progress(progress)

    flow = load("patterns.linear_flow").Flow("f").add(Hears(), failing(load))
    with pytest.raises(LookupError):
        load("engines").run(flow, engine=engine)
    assert heard == [0.0, 0.5, 1.0, 0.0, 1.0]


def test_moments_of_a_book_are_in_utc_and_do_not_say_so(load: Load, tmp_path: pathlib.Path) -> None:
    before = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
    book = load("persistence.models").LogBook("b")
    assert dt.timedelta(0) <= book.created_at - before < dt.timedelta(minutes=5)
    conf = {"connection": f"file:///{tmp_path / 'd'}", "path": str(tmp_path / "d")}
    backend = load("persistence.backends").fetch(conf)
    with contextlib.closing(backend), contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
        connection.save_logbook(book)
        assert connection.get_logbook(book.uuid).created_at == book.created_at


def test_arguments_of_a_failure_are_a_tuple(load: Load) -> None:
    failure = load("types.failure").Failure
    told = failure.from_exception(LookupError("lost", 2)).to_dict()
    assert told["exc_args"] == ("lost", 2)
    failure.validate(told)
    assert failure.from_dict(told).exception_args == ("lost", 2)
    assert failure.from_exception(LookupError(1)).to_dict(include_args=False)["exc_args"] == ()


@pytest.mark.parametrize("pattern", ["linear", "unordered", "graph"])
def test_two_atoms_of_one_name_are_duplicates(load: Load, pattern: str) -> None:
    def wants(missing: Any) -> None:
        pass

    task = load("task").FunctorTask
    flow = load(f"patterns.{pattern}_flow").Flow("f")
    flow.add(task(lambda: None, name="same"), task(wants, name="same"))
    with pytest.raises(load("exceptions").Duplicate, match="same"):
        load("engines").load(flow).compile()


def test_storage_tells_the_backend_that_was_given(load: Load) -> None:
    backend = load("persistence.backends").fetch({"connection": "memory"})
    flow = load("patterns.linear_flow").Flow("f")
    assert backend is load("engines").load(flow, backend=backend).storage.backend


def test_values_from_the_start_may_be_pairs(load: Load) -> None:
    flow = load("patterns.linear_flow").Flow("f")
    assert load("engines").run(flow, store=[("a", 1)], engine="") == {"a": 1}


def test_graph_flow_takes_keywords_that_it_does_not_use(load: Load) -> None:
    task = load("task").FunctorTask(lambda: None, name="t")
    assert len(load("patterns.graph_flow").Flow("f").add(task, resolve=True)) == 1


def test_cache_of_a_folder_holds_something(load: Load, tmp_path: pathlib.Path) -> None:
    backend = load("persistence.backends.impl_dir").DirBackend
    backend({"path": str(tmp_path), "max_cache_size": None}).close()
    with pytest.raises(ValueError):
        backend({"path": str(tmp_path), "max_cache_size": 0})


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("pattern", ["linear", "graph"])
def test_stale_dependant_of_a_retried_subflow_is_reverted(
    load: Load, pattern: str, suspended: bool
) -> None:
    """The subflow has got one more task since it was done, which fails when it is run."""
    told: list[str] = []
    fails = ["new"]

    class Step(load("task").Task):  # type: ignore[misc]
        def execute(self, **needed: Any) -> str:
            told.append(self.name)
            if self.name in fails:
                fails.remove(self.name)
                raise LookupError("lost")
            return self.name

        def revert(self, **needed: Any) -> None:
            told.append(f"-{self.name}")
            if suspended and self.name == "second":
                engine.suspend()

    def made(*more: str) -> Any:
        retry = load("retry").Times(3, name="retry")
        inner = load("patterns.linear_flow").Flow("inner", retry).add(Step("a", provides="x"))
        inner.add(*map(Step, more))
        first = Step("first", requires=["x"], provides="y")
        flow = load(f"patterns.{pattern}_flow").Flow("f")
        if pattern == "graph":
            flow.add(Step("apart"))
        return flow.add(inner, first, Step("second", requires=["y"]))

    models = load("persistence.models")
    book, detail = models.LogBook("b"), models.FlowDetail("f", "1234")
    book.add(detail)
    backend = load("persistence.backends").fetch({"connection": "memory"})
    with contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
        connection.save_logbook(book)
    load("engines").run(made(), flow_detail=detail, backend=backend)
    told.clear()
    engine = load("engines").load(made("new"), flow_detail=detail, backend=backend)
    engine.run()
    if suspended:
        assert (told[1:], engine.storage.get_flow_state()) == (["-second"], "SUSPENDED")
        engine = load("engines").load(made("new"), flow_detail=detail, backend=backend)
        engine.run()
    undone, again = ["-second", "-first", "-new", "-a"], ["a", "new", "first", "second"]
    assert (told, engine.storage.get_flow_state()) == (["new", *undone, *again], "SUCCESS")


# Helpers: what each call comes to with both.

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *[("as_int", (value,)) for value in ("2", "2.5", 2.5, True, "x", None)],
    ("as_int", ("x", True)),
    *[("clamp", values) for values in ((1, 2, 3), (9, 2, 3), (2.5, 2, 3), (1, 3, 2))],
    *[("decode_json", (text,)) for text in (b'{"a": 1}', "[1]", b"\xff", "{", 3)],
    *[("decode_json", values) for values in (("[1]", (list,)), ("1", ()), ("1", (list, dict)))],
    *[("parse_uri", (uri,)) for uri in ("a://b/c?d=1", "nothing", 3)],
]


def outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call comes to, in a form that can be compared."""
    try:
        return call(*args)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", sorted({name for name, _ in CALLS}))
def test_helper_comes_to_the_same(name: str) -> None:
    ours, theirs = (
        [
            outcome(getattr(importlib.import_module(f"{package}.utils.misc"), name), args)
            for called, args in CALLS
            if called == name
        ]
        for package in ("wbengine", "taskflow")
    )
    assert ours == theirs


def test_kinds_of_atom_records_have_names(load: Load) -> None:
    models = load("persistence.models")
    assert sorted(models.ATOM_TYPES) == ["RETRY_DETAIL", "TASK_DETAIL"]
    for name in models.ATOM_TYPES:
        assert models.atom_detail_type(models.atom_detail_class(name)("a", "u")) == name
    for call, value in ((models.atom_detail_class, "FLOW"), (models.atom_detail_type, "a")):
        with pytest.raises(TypeError, match="Unknown atom"):
            call(value)
