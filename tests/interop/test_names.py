"""Code that is written with TaskFlow's names does the same here: each test runs over both."""

from __future__ import annotations

import importlib
import logging
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

BACKENDS: Mapping[str, tuple[str, Callable[[pathlib.Path], dict[str, Any]]]] = {
    "impl_memory": ("MemoryBackend", lambda folder: {"deep_copy": True}),
    "impl_dir": ("DirBackend", lambda folder: {"path": str(folder / "d"), "max_cache_size": 64}),
    "impl_sqlalchemy": (
        "SQLAlchemyBackend",
        lambda folder: {"connection": f"sqlite:///{folder / 'd.db'}", "max_retries": 1},
    ),
}


@pytest.fixture(params=["taskflow", "wbengine"])
def load(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Import a module of TaskFlow, or its twin."""
    return lambda name: importlib.import_module(f"{request.param}.{name}")


@pytest.mark.parametrize("module", BACKENDS)
def test_backend_class_of_taskflow_keeps_a_book(
    load: Callable[[str], Any], module: str, tmp_path: pathlib.Path
) -> None:
    name, conf = BACKENDS[module]
    models = load("persistence.models")
    implementation = load(f"persistence.backends.{module}")
    backend = getattr(implementation, name)(conf(tmp_path))
    connection = backend.get_connection()
    assert isinstance(connection, implementation.Connection)
    connection.upgrade()
    connection.validate()
    book = models.LogBook("b")
    connection.save_logbook(book)
    assert backend.get_connection().get_logbook(book.uuid).name == "b"
    connection.close()
    backend.close()


def test_memory_backend_needs_no_configuration(load: Callable[[str], Any]) -> None:
    backend = load("persistence.backends.impl_memory").MemoryBackend()
    assert list(backend.get_connection().get_logbooks()) == []


@pytest.mark.parametrize("module", BACKENDS)
def test_configuration_of_a_backend_is_a_dict(load: Callable[[str], Any], module: str) -> None:
    backend = getattr(load(f"persistence.backends.{module}"), BACKENDS[module][0])
    with pytest.raises(TypeError, match="memory://"):
        backend("memory://")


def test_task_module_has_its_log(
    load: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    task = load("task")
    assert f"{task.__name__}" == task.LOG.name
    with caplog.at_level(logging.WARNING, logger=task.LOG.name):
        task.FunctorTask(lambda: None, name="n").update_progress(2.0)
    assert [task.LOG.name] == [record.name for record in caplog.records]


def test_failure_has_exc_info_until_it_travels(load: Callable[[str], Any]) -> None:
    failure = load("types.failure")
    try:
        raise LookupError("lost")
    except LookupError:
        caught = failure.Failure()
    kind, error, traceback = caught._exc_info
    assert (LookupError, "lost") == (kind, error.args[0])
    assert __file__ == traceback.tb_frame.f_code.co_filename
    assert failure.Failure.from_dict(caught.to_dict())._exc_info is None
    assert LookupError is pickle.loads(pickle.dumps(caught))._exc_info[0]


def test_subclass_of_a_task_tells_its_notifier(load: Callable[[str], Any]) -> None:
    task = load("task")

    class Talks(task.Task):  # type: ignore[misc,name-defined]
        TASK_EVENTS = (*task.Task.TASK_EVENTS, "mine")

        def execute(self) -> None:
            self._notifier.notify("mine", {"n": 1})

    made, heard = Talks(), []
    assert made._notifier is made.notifier
    made._notifier.register("mine", lambda event, details: heard.append((event, details["n"])))
    copied = made.copy()
    copied.execute()
    bare = made.copy(retain_listeners=False)
    bare.execute()
    assert heard == [("mine", 1)]
    assert copied._notifier is not made._notifier
