"""Backends are found by kind, URI or dict, with every form of options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from wbengine import _options, _plugins, exceptions
from wbengine.persistence import backends, models
from wbengine.persistence.backends import memory, sql


@pytest.mark.parametrize(
    ("conf", "options", "expected"),
    [
        ("memory", {}, True),
        ("memory:", {}, True),
        ("memory://", {}, True),
        ("memory://?deep_copy=false", {}, False),
        ("memory://?deep_copy=NO", {}, False),
        ({"connection": "memory"}, {}, True),
        ({"connection": "memory", "deep_copy": "off"}, {}, False),
        ({"connection": "memory://", "deep_copy": False, "path": "/"}, {}, False),
        ("memory", {"deep_copy": False}, False),
        ("memory+fast://?deep_copy=0", {}, False),
        ({"connection": "memory://?deep_copy=false", "deep_copy": True}, {}, True),
        ({"connection": "memory", "deep_copy": True}, {"deep_copy": False}, False),
    ],
)
def test_all_forms_of_options(conf: Any, options: dict[str, Any], expected: bool) -> None:
    """What is nearer wins: keyword, dict, URI; the dict that was given stays as it was."""
    before = dict(conf) if isinstance(conf, dict) else conf
    backend = backends.fetch(conf, **options)
    assert isinstance(backend, memory.MemoryBackend)
    assert backend.deep_copy is expected
    assert conf == before


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("dir://{path}", 5),
        ("file://{path}?max_cache_size=7", 5),
        ({"connection": "dir", "path": "{path}", "max_cache_size": 7, "encoding": "utf-8"}, 5),
        ({"connection": "dir://{path}", "max_cache_size": "7"}, 5),
        ("sqlite://{path}/x.db", 5),
        ("sqlite://{path}/x.db?max_pool_size=7&checkout_ping=no", 7),
        ({"connection": "sqlite://{path}/x.db", "max_pool_size": 7, "max_retries": "2"}, 7),
        ({"connection": "sqlite+pysqlite://{path}/x.db?timeout=3", "max_pool_size": "7"}, 7),
    ],
)
def test_options_of_durable_kinds(conf: Any, expected: int, tmp_path: Path) -> None:
    """The same forms, whatever the kind; and a book is kept where they say."""
    path = str(tmp_path / "kept")
    os.mkdir(path)
    if isinstance(conf, str):
        conf = conf.format(path=path.replace("//", "/")).replace("sqlite://", "sqlite:///")
    else:
        conf = {key: v.format(path=path) if "{" in str(v) else v for key, v in conf.items()}
        conf["connection"] = re.sub("(sqlite.*?)://", r"\1:///", conf["connection"])
    before = set(os.listdir(path))
    with backends.backend(conf) as made:
        assert isinstance(made, sql.SQLBackend)
        assert made.options.max_pool_size == expected
        with made.get_connection() as connection:
            connection.save_logbook(models.LogBook("b"))
    assert set(os.listdir(path)) > before


@pytest.mark.parametrize(
    ("conf", "error", "words"),
    [
        ("memory://?deepcopy=1", ValueError, "memory backend has no option 'deepcopy'"),
        ("memory://?deepcopy=1", ValueError, "did you mean 'deep_copy'"),
        ({"connection": "memory", "pth": 1}, ValueError, "did you mean 'path'"),
        ("memory://?deep_copy=perhaps", ValueError, "deep_copy='perhaps' is neither true nor"),
        ({"conection": "memory"}, ValueError, "needs a 'connection'"),
        ({"connection": None}, ValueError, "needs a 'connection'"),
        ("", ValueError, "needs a 'connection'"),
        (7, TypeError, "a dict or a URI, not 7"),
        ("memry", exceptions.NotFound, "did you mean 'memory'"),
        ("postgres://h/db", exceptions.NotFound, "did you mean 'postgresql'"),
        ("mariadb+pymysql://h/db", exceptions.NotFound, "did you mean 'mysql'"),
        ("dir", ValueError, "needs a 'path'"),
        ("dir:///tmp/x?pth=/y", ValueError, "did you mean 'path'"),
        ("dir:///tmp/why?not", ValueError, "no option 'not'"),
        ("dir:///tmp/number#1", ValueError, "written %23"),
        (
            {"connection": "file", "path": "/x", "max_cache_size": "many"},
            ValueError,
            "'many' is no",
        ),
        ({"connection": "sqlite://", "checkout_ping": "x"}, ValueError, "checkout_ping='x'"),
        ("zookeeper://h", exceptions.NotFound, "known kinds: dir, file, memory"),
    ],
)
def test_what_is_wrong_is_said(conf: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        backends.fetch(conf)


@pytest.mark.parametrize(
    "conf",
    [
        "postgres://user:hush@host/db",
        {"connection": "nothing://user:hush@host/db", "password": "hush"},
        {"conection": "x://user:hush@host/db", "password": "hush"},
        {"connection": "mysql://user:hush@host"},
        {"connection": "postgresql://user:hush@host/db", "max_pool_size": "x"},
        {"connection": "mysql+nothing://user:hush@host/db", "max_pool": "1"},
    ],
)
def test_passwords_are_not_told(conf: Any) -> None:
    """Not by errors."""
    with pytest.raises((ValueError, exceptions.NotFound)) as caught:
        backends.fetch(conf)
    told: BaseException | None = caught.value
    while told is not None:
        assert "hush" not in str(told) and "hush" not in repr(told)
        told = told.__cause__


class Plugged(memory.MemoryBackend):
    closed = 0
    upgraded = 0

    def close(self) -> None:
        self.closed += 1

    def get_connection(self) -> memory.MemoryConnection:
        backend = self

        class Connection(memory.MemoryConnection):
            def upgrade(self) -> None:
                backend.upgraded += 1

        return Connection(self)


def test_kinds_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """From any entry point group; our own kinds are there in every group."""

    def find(group: str, kind: str) -> Any:
        if (group, kind) == ("mine", "plugged"):
            return Plugged
        raise exceptions.NotFound(kind)

    monkeypatch.setattr(_plugins, "find", find)
    assert type(backends.fetch("plugged", namespace="mine")) is Plugged
    assert type(backends.fetch("memory", namespace="mine")) is memory.MemoryBackend
    with pytest.raises(exceptions.NotFound):
        backends.fetch("plugged")

    with backends.backend({"connection": "plugged"}, namespace="mine", deep_copy=False) as made:
        assert isinstance(made, Plugged)
        assert (made.upgraded, made.closed, made.deep_copy) == (1, 0, False)
    assert made.closed == 1
    with pytest.raises(ZeroDivisionError), backends.backend("plugged", namespace="mine") as made:
        raise ZeroDivisionError
    assert isinstance(made, Plugged) and made.closed == 1


def test_a_backend_in_a_context_keeps() -> None:
    with backends.backend("memory") as made, made.get_connection() as connection:
        book = models.LogBook("b")
        connection.save_logbook(book)
        assert connection.get_logbook(book.uuid).name == "b"


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (_options.whole, {"7": 7, 0: 0}, ["x", "1.5", -1, True, None, 1.0]),
        (_options.number, {"1.5": 1.5, 2: 2.0, 0: 0.0}, ["x", "nan", "inf", -1, True, None]),
        (_options.text, {"a": "a"}, ["", None, 3]),
        (_options.flag, {"Yes": True, "0": False, 1: True}, ["2", "maybe"]),
    ],
)
def test_reading_options(read: Any, good: Mapping[Any, Any], bad: list[Any]) -> None:
    """As words or as what they are; what is wrong is named."""
    for value, expected in good.items():
        found = read("size", value)
        assert found == expected and type(found) is type(expected)
    for value in bad:
        with pytest.raises(ValueError, match="Option size="):
            read("size", value)
