"""Behaviour that programs for TaskFlow rely on; each test runs with TaskFlow and with wbengine."""

from __future__ import annotations

import contextlib
import datetime as dt
import fractions
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

Load = Callable[[str], Any]


def failing(load: Load, provides: Any = None) -> Any:
    """Return a task that fails."""

    def fail() -> None:
        raise LookupError("lost")

    return load("task").FunctorTask(fail, name="fails", provides=provides)


def run_in_vain(load: Load, *members: Any) -> Any:
    """Run a flow that fails and return its engine."""
    flow = load("patterns.linear_flow").Flow("f").add(*members)
    engine = load("engines").load(flow)
    with pytest.raises(LookupError, match="lost"):
        engine.run()
    return engine


def test_wildcard_listener_receives_undeclared_task_events(load: Load) -> None:
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
def test_failure_is_fetched_if_name_is_the_whole_result(
    load: Load, provides: Any, names: list[str]
) -> None:
    storage = run_in_vain(load, failing(load, provides)).storage
    assert list(storage.fetch_all()) == names
    if not names:
        with pytest.raises(load("exceptions").NotFound):
            storage.fetch("x")
        return
    for value in (storage.fetch("x"), storage.fetch_all()["x"]):
        assert isinstance(value, load("types.failure").Failure)
        assert (LookupError, "lost") == (type(value.exception), value.exception_str)


def test_progress_details_stay_when_a_task_is_reverted(load: Load) -> None:
    class Talks(load("task").Task):  # type: ignore[misc]
        def execute(self) -> None:
            self.notifier.notify("update_progress", {"progress": 0.5, "at": "disk 1"})

    storage = run_in_vain(load, Talks(name="t"), failing(load)).storage
    details = storage.get_task_progress_details("t")
    assert details == {"at_progress": 0.5, "details": {"at": "disk 1"}}
    assert (storage.get_atom_state("t"), storage.get_task_progress("t")) == ("REVERTED", 1.0)


@pytest.mark.parametrize("tell", ["update_progress", "notify"])
def test_progress_may_be_a_fraction(load: Load, tell: str) -> None:
    quarter = fractions.Fraction(1, 4)

    class Talks(load("task").Task):  # type: ignore[misc]
        def execute(self) -> Any:
            if tell == "notify":
                self.notifier.notify("update_progress", {"progress": quarter})
            else:
                self.update_progress(quarter)
            return engine.storage.get_task_progress("t")

    engine = load("engines").load(Talks("t"))
    engine.run()
    assert engine.storage.get("t") == quarter


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_progress_in_metadata_is_saved(load: Load, kind: str, tmp_path: pathlib.Path) -> None:
    progress = {"at_progress": 0.5, "details": {"at": "disk 1"}}
    conf = {"connection": kind, "path": str(tmp_path / "d")}
    backend = load("persistence.backends").fetch(conf)
    task = load("task").FunctorTask(lambda: None, name="t")
    with contextlib.closing(backend), contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
        engine = load("engines").load(task, backend=backend)
        engine.run()
        storage = engine.storage
        storage.update_atom_metadata(
            "t", {"progress": 0.5, "progress_details": progress, "mine": 1}
        )
        assert storage.get_task_progress("t") == 0.5
        assert storage.get_task_progress_details("t") == progress
        record = connection.get_atom_details(storage.get_atom_uuid("t"))
        assert record.meta == {"progress": 0.5, "progress_details": progress, "mine": 1}
        record.meta["progress"] = 0.75
        record.meta.update({"progress_details": None})
        connection.update_atom_details(record)
        record = connection.get_atom_details(record.uuid)
        assert record.meta == {"progress": 0.75, "progress_details": None, "mine": 1}
        record.meta = {"progress": 0.25, "progress_details": progress}
        connection.update_atom_details(record)
        record = connection.get_atom_details(record.uuid)
        assert (record.meta["progress"], record.meta["progress_details"]) == (0.25, progress)


def test_database_without_tables_is_valid(load: Load) -> None:
    """None is the value of unset options."""
    conf = {"connection": "sqlite://", "pool_timeout": None, "max_pool_size": None}
    backend = load("persistence.backends").fetch(conf)
    with contextlib.closing(backend), contextlib.closing(backend.get_connection()) as connection:
        connection.validate()
        assert backend.engine.dialect.name == "sqlite"


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_overridden_update_progress_receives_start_and_end(load: Load, engine: str) -> None:
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


def test_logbook_timestamps_are_naive_utc(load: Load, tmp_path: pathlib.Path) -> None:
    before = dt.datetime.now(dt.UTC).replace(tzinfo=None)
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
    data = failure.from_exception(LookupError("lost", 2)).to_dict()
    assert data["exc_args"] == ("lost", 2)
    failure.validate(data)
    assert failure.from_dict(data).exception_args == ("lost", 2)
    assert failure.from_exception(LookupError(1)).to_dict(include_args=False)["exc_args"] == ()


@pytest.mark.parametrize("pattern", ["linear", "unordered", "graph"])
def test_two_atoms_with_same_name_are_refused(load: Load, pattern: str) -> None:
    def wants(missing: Any) -> None:
        pass

    task = load("task").FunctorTask
    flow = load(f"patterns.{pattern}_flow").Flow("f")
    flow.add(task(lambda: None, name="same"), task(wants, name="same"))
    with pytest.raises(load("exceptions").Duplicate, match="same"):
        load("engines").load(flow).compile()


def test_storage_exposes_given_backend(load: Load) -> None:
    backend = load("persistence.backends").fetch({"connection": "memory"})
    flow = load("patterns.linear_flow").Flow("f")
    assert backend is load("engines").load(flow, backend=backend).storage.backend


def test_initial_store_may_be_pairs(load: Load) -> None:
    flow = load("patterns.linear_flow").Flow("f")
    assert load("engines").run(flow, store=[("a", 1)], engine="") == {"a": 1}


def test_graph_flow_ignores_unknown_keywords(load: Load) -> None:
    task = load("task").FunctorTask(lambda: None, name="t")
    assert len(load("patterns.graph_flow").Flow("f").add(task, resolve=True)) == 1


def test_cache_size_of_folder_backend_must_be_positive(load: Load, tmp_path: pathlib.Path) -> None:
    backend = load("persistence.backends.impl_dir").DirBackend
    backend({"path": str(tmp_path), "max_cache_size": None}).close()
    with pytest.raises(ValueError):
        backend({"path": str(tmp_path), "max_cache_size": 0})


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("pattern", ["linear", "graph"])
def test_new_failing_task_in_completed_subflow_reverts_its_dependants(
    load: Load, pattern: str, suspended: bool
) -> None:
    """The completed subflow has a new task, which fails in the second run."""
    reverted: list[str] = []
    fails = ["new"]

    class Step(load("task").Task):  # type: ignore[misc]
        def execute(self, **needed: Any) -> str:
            reverted.append(self.name)
            if self.name in fails:
                fails.remove(self.name)
                raise LookupError("lost")
            return self.name

        def revert(self, **needed: Any) -> None:
            reverted.append(f"-{self.name}")
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
    reverted.clear()
    engine = load("engines").load(made("new"), flow_detail=detail, backend=backend)
    engine.run()
    if suspended:
        assert (reverted[1:], engine.storage.get_flow_state()) == (["-second"], "SUSPENDED")
        engine = load("engines").load(made("new"), flow_detail=detail, backend=backend)
        engine.run()
    undone, again = ["-second", "-first", "-new", "-a"], ["a", "new", "first", "second"]
    assert (reverted, engine.storage.get_flow_state()) == (["new", *undone, *again], "SUCCESS")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_backends_and_connections_are_path_based(
    load: Load, kind: str, tmp_path: pathlib.Path
) -> None:
    path_based = load("persistence.path_based")
    conf = {"connection": kind, "path": str(tmp_path / "d")}
    with contextlib.closing(load("persistence.backends").fetch(conf)) as backend:
        assert isinstance(backend, path_based.PathBasedBackend)
        assert isinstance(backend.get_connection(), path_based.PathBasedConnection)


@pytest.mark.parametrize("method", ["get_flows_for_book", "get_atoms_for_flow"])
def test_method_of_path_based_class_can_be_patched(
    load: Load, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs patch it in their tests of the memory backend, for example Masakari."""
    connection = load("persistence.backends").fetch("memory://").get_connection()
    replaced = load("persistence.path_based").PathBasedConnection
    monkeypatch.setattr(replaced, method, lambda self, uuid: iter([uuid]))
    assert list(getattr(connection, method)("uuid")) == ["uuid"]


@pytest.mark.parametrize(
    ("kind", "name"), [("serial", "SerialActionEngine"), ("parallel", "ParallelActionEngine")]
)
def test_engines_are_action_engines(load: Load, kind: str, name: str) -> None:
    classes = load("engines.action_engine.engine")
    engine = load("engines").load(load("patterns.linear_flow").Flow("f"), engine=kind)
    assert type(engine) is getattr(classes, name)
    assert isinstance(engine, classes.ActionEngine)
    worker_based = load("engines.worker_based.engine").WorkerBasedActionEngine
    assert issubclass(worker_based, classes.ActionEngine)


# Helpers: calls whose results are compared.

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *[("as_int", (value,)) for value in ("2", "2.5", 2.5, True, "x", None)],
    ("as_int", ("x", True)),
    *[("clamp", values) for values in ((1, 2, 3), (9, 2, 3), (2.5, 2, 3), (1, 3, 2))],
    *[("decode_json", (text,)) for text in (b'{"a": 1}', "[1]", b"\xff", "{", 3)],
    *[("decode_json", values) for values in (("[1]", (list,)), ("1", ()), ("1", (list, dict)))],
    *[("parse_uri", (uri,)) for uri in ("a://b/c?d=1", "nothing", 3)],
]


def outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the result or the type of the exception of a call."""
    try:
        return call(*args)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", sorted({name for name, _ in CALLS}))
def test_helper_returns_same_as_taskflow(name: str) -> None:
    ours, theirs = (
        [
            outcome(getattr(importlib.import_module(f"{package}.utils.misc"), name), args)
            for called, args in CALLS
            if called == name
        ]
        for package in ("wbengine", "taskflow")
    )
    assert ours == theirs


def test_atom_record_types_have_names(load: Load) -> None:
    models = load("persistence.models")
    assert sorted(models.ATOM_TYPES) == ["RETRY_DETAIL", "TASK_DETAIL"]
    for name in models.ATOM_TYPES:
        assert models.atom_detail_type(models.atom_detail_class(name)("a", "u")) == name
    for call, value in ((models.atom_detail_class, "FLOW"), (models.atom_detail_type, "a")):
        with pytest.raises(TypeError, match="Unknown atom"):
            call(value)
