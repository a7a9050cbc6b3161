"""Names of TaskFlow; each test runs with TaskFlow and with wbengine."""

from __future__ import annotations

import logging
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

Load = Callable[[str], Any]

BACKENDS: Mapping[str, tuple[str, Callable[[pathlib.Path], dict[str, Any]]]] = {
    "impl_memory": ("MemoryBackend", lambda folder: {"deep_copy": True}),
    "impl_dir": ("DirBackend", lambda folder: {"path": str(folder / "d"), "max_cache_size": 64}),
    "impl_sqlalchemy": (
        "SQLAlchemyBackend",
        lambda folder: {"connection": f"sqlite:///{folder / 'd.db'}", "max_retries": 1},
    ),
}


@pytest.mark.parametrize("module", BACKENDS)
def test_backend_class_of_taskflow_saves_logbook(
    load: Load, module: str, tmp_path: pathlib.Path
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


def test_memory_backend_needs_no_configuration(load: Load) -> None:
    backend = load("persistence.backends.impl_memory").MemoryBackend()
    assert list(backend.get_connection().get_logbooks()) == []


@pytest.mark.parametrize("module", BACKENDS)
def test_configuration_of_backend_must_be_a_dict(load: Load, module: str) -> None:
    backend = getattr(load(f"persistence.backends.{module}"), BACKENDS[module][0])
    with pytest.raises(TypeError, match="memory://"):
        backend("memory://")


def test_zookeeper_client_is_created_from_board_configuration(
    load: Load,
) -> None:
    kazoo_utils = load("utils.kazoo_utils")
    conf = {
        "board": "zookeeper",
        "path": "/jobs",
        "hosts": {"one": 2181, "two": "2182"},
        "timeout": "4",
        "use_ssl": "yes",
    }
    client = kazoo_utils.make_client(conf)
    hosts = [(host, int(port)) for host, port in client.hosts]
    assert (hosts, client._session_timeout) == ([("one", 2181), ("two", 2182)], 4000)
    assert (client.use_ssl, client.randomize_hosts) == (True, False)
    kazoo_utils.finalize_client(client)
    [(host, port)] = kazoo_utils.make_client({}).hosts
    assert (host, int(port)) == ("localhost", 2181)


def test_task_module_has_a_logger(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    task = load("task")
    assert f"{task.__name__}" == task.LOG.name
    with caplog.at_level(logging.WARNING, logger=task.LOG.name):
        task.FunctorTask(lambda: None, name="n").update_progress(2.0)
    assert [task.LOG.name] == [record.name for record in caplog.records]


def test_failure_from_dict_has_no_exc_info(load: Load) -> None:
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


def test_task_subclass_notifies_custom_event(load: Load) -> None:
    task = load("task")

    class Talks(task.Task):  # type: ignore[misc,name-defined]
        TASK_EVENTS = (*task.Task.TASK_EVENTS, "mine")

        def execute(self) -> None:
            self._notifier.notify("mine", {"n": 1})

    talking, heard = Talks(), []
    assert talking._notifier is talking.notifier
    talking._notifier.register("mine", lambda event, details: heard.append((event, details["n"])))
    copied = talking.copy()
    copied.execute()
    bare = talking.copy(retain_listeners=False)
    bare.execute()
    assert heard == [("mine", 1)]
    assert copied._notifier is not talking._notifier
