"""Selection of backends by kind, URI or dict, with all forms of options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from wbengine import exceptions
from wbengine._configuration import named_options, plugins
from wbengine.persistence import backends, models
from wbengine.persistence.backends import _memory, _sql

MEMORY_OPTIONS: dict[str, Any] = {
    "kind": ("memory", {}, True),
    "kind-colon": ("memory:", {}, True),
    "uri": ("memory://", {}, True),
    "uri-false": ("memory://?deep_copy=false", {}, False),
    "uri-no": ("memory://?deep_copy=NO", {}, False),
    "dict": ({"connection": "memory"}, {}, True),
    "dict-off": ({"connection": "memory", "deep_copy": "off"}, {}, False),
    "dict-uri": ({"connection": "memory://", "deep_copy": False, "path": "/"}, {}, False),
    "keyword": ("memory", {"deep_copy": False}, False),
    "dict-over-uri": ({"connection": "memory://?deep_copy=false", "deep_copy": True}, {}, True),
    "keyword-over-dict": ({"connection": "memory", "deep_copy": True}, {"deep_copy": False}, False),
}


@pytest.mark.parametrize(
    ("conf", "options", "expected"), MEMORY_OPTIONS.values(), ids=MEMORY_OPTIONS
)
def test_options_are_read_from_keyword_dict_and_uri(
    conf: Any, options: dict[str, Any], expected: bool
) -> None:
    """Keywords take precedence over the dict, and the dict over the URI."""
    before = dict(conf) if isinstance(conf, dict) else conf
    backend = backends.fetch(conf, **options)
    assert isinstance(backend, _memory.MemoryBackend)
    assert backend.deep_copy is expected
    assert conf == before


SQL_OPTIONS: dict[str, Any] = {
    "dir": ("dir://{path}", 5),
    "file": ("file://{path}?max_cache_size=7", 5),
    "dir-dict": (
        {"connection": "dir", "path": "{path}", "max_cache_size": 7, "encoding": "utf-8"},
        5,
    ),
    "dir-dict-uri": ({"connection": "dir://{path}", "max_cache_size": "7"}, 5),
    "sqlite": ("sqlite://{path}/x.db", 5),
    "sqlite-options": ("sqlite://{path}/x.db?max_pool_size=7&checkout_ping=no", 7),
    "sqlite-dict": (
        {"connection": "sqlite://{path}/x.db", "max_pool_size": 7, "max_retries": "2"},
        7,
    ),
    "sqlite-driver": (
        {"connection": "sqlite+pysqlite://{path}/x.db?timeout=3", "max_pool_size": "7"},
        7,
    ),
}


@pytest.mark.parametrize(("conf", "expected"), SQL_OPTIONS.values(), ids=SQL_OPTIONS)
def test_options_of_sql_backends_are_read_from_all_forms(
    conf: Any, expected: int, tmp_path: Path
) -> None:
    """The logbook is stored at the configured path."""
    path = str(tmp_path / "kept")
    os.mkdir(path)
    if isinstance(conf, str):
        conf = conf.format(path=path.replace("//", "/")).replace("sqlite://", "sqlite:///")
    else:
        conf = {key: v.format(path=path) if "{" in str(v) else v for key, v in conf.items()}
        conf["connection"] = re.sub("(sqlite.*?)://", r"\1:///", conf["connection"])
    before = set(os.listdir(path))
    with backends.backend(conf) as made:
        assert isinstance(made, _sql.SQLBackend)
        assert made.options.max_pool_size == expected
        with made.get_connection() as connection:
            connection.save_logbook(models.LogBook("b"))
    assert set(os.listdir(path)) > before


@pytest.mark.parametrize(
    ("conf", "error", "words"),
    [
        ("memory://?deepcopy=1", ValueError, "memory backend: unknown option 'deepcopy'"),
        ("memory://?deepcopy=1", ValueError, "did you mean 'deep_copy'"),
        ({"connection": "memory", "pth": 1}, ValueError, "did you mean 'path'"),
        ("memory://?deep_copy=perhaps", ValueError, "deep_copy must be true or false"),
        ({"conection": "memory"}, ValueError, "must contain 'connection'"),
        ({"connection": None}, ValueError, "must contain 'connection'"),
        ("", ValueError, "must contain 'connection'"),
        (7, TypeError, "a dict or a URI, got 7"),
        ("memry", exceptions.NotFound, "did you mean 'memory'"),
        ("postgres://h/db", exceptions.NotFound, "did you mean 'postgresql'"),
        ("mariadb+pymysql://h/db", exceptions.NotFound, "did you mean 'mysql'"),
        ("dir+x:///tmp/x", exceptions.NotFound, "did you mean 'dir'"),
        ("memory+x://", exceptions.NotFound, "did you mean 'memory'"),
        ("filesystem:///tmp/x", exceptions.NotFound, "did you mean 'dir'"),
        ("dir:///", ValueError, "connection='dir:///folder', got 'dir:///'"),
        ("sqlite:////", ValueError, "'sqlite:////path/of.db'.* got the folder 'sqlite:////'"),
        ("dir", ValueError, "requires 'path'"),
        ("dir:///tmp/x?pth=/y", ValueError, "did you mean 'path'"),
        ("dir:///tmp/why?not", ValueError, "unknown option 'not'"),
        ("dir:///tmp/number#1", ValueError, "write it as %23"),
        (
            {"connection": "file", "path": "/x", "max_cache_size": "many"},
            ValueError,
            "must be a whole number of 1 or more, got 'many'",
        ),
        ({"connection": "sqlite://", "checkout_ping": "x"}, ValueError, "checkout_ping must be"),
        ("zookeeper://h", exceptions.NotFound, "known kinds: dir, file, memory"),
    ],
)
def test_invalid_configuration_is_explained(conf: Any, error: Any, words: str) -> None:
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
    ids=["kind", "kind-dict", "misspelled", "missing-database", "pool-size", "driver"],
)
def test_errors_contain_no_password(conf: Any) -> None:
    with pytest.raises((ValueError, exceptions.NotFound)) as caught:
        backends.fetch(conf)
    told: BaseException | None = caught.value
    while told is not None:
        assert "hush" not in str(told) and "hush" not in repr(told)
        told = told.__cause__


class Plugged(_memory.MemoryBackend):
    closed = 0
    upgraded = 0

    def close(self) -> None:
        self.closed += 1

    def get_connection(self) -> _memory.MemoryConnection:
        backend = self

        class Connection(_memory.MemoryConnection):
            def upgrade(self) -> None:
                backend.upgraded += 1

        return Connection(self)


def test_plug_in_kind_is_found_in_its_entry_point_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in kinds are available in each group."""

    def find(group: str, kind: str) -> Any:
        if (group, kind) == ("mine", "plugged"):
            return Plugged
        raise exceptions.NotFound(kind)

    monkeypatch.setattr(plugins, "find", find)
    assert type(backends.fetch("plugged", namespace="mine")) is Plugged
    assert type(backends.fetch("memory", namespace="mine")) is _memory.MemoryBackend
    with pytest.raises(exceptions.NotFound):
        backends.fetch("plugged")

    with backends.backend({"connection": "plugged"}, namespace="mine", deep_copy=False) as made:
        assert isinstance(made, Plugged)
        assert (made.upgraded, made.closed, made.deep_copy) == (1, 0, False)
    assert made.closed == 1
    with pytest.raises(ZeroDivisionError), backends.backend("plugged", namespace="mine") as made:
        raise ZeroDivisionError
    assert isinstance(made, Plugged) and made.closed == 1


def test_backend_context_manager_stores_logbooks() -> None:
    with backends.backend("memory") as made, made.get_connection() as connection:
        book = models.LogBook("b")
        connection.save_logbook(book)
        assert connection.get_logbook(book.uuid).name == "b"


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (named_options.whole, {"7": 7, 0: 0}, ["x", "1.5", -1, True, None, 1.0]),
        (named_options.number, {"1.5": 1.5, 2: 2.0, 0: 0.0}, ["x", "nan", "inf", -1, True, None]),
        (named_options.text, {"a": "a"}, ["", None, 3]),
        (named_options.flag, {"Yes": True, "0": False, 1: True}, ["2", "maybe"]),
    ],
    ids=["whole", "number", "text", "flag"],
)
def test_option_readers_convert_or_reject_values(
    read: Any, good: Mapping[Any, Any], bad: list[Any]
) -> None:
    for value, expected in good.items():
        found = read("size", value)
        assert found == expected and type(found) is type(expected)
    for value in bad:
        with pytest.raises(ValueError, match="Option size must be "):
            read("size", value)
