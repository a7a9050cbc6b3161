"""The published contract of transports, on those of wbengine and of an example."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from examples import table_transport
from wbengine.testing.transport_contract import TransportContract
from wbengine.transports import registry

_numbers = itertools.count()


class TestMemory(TransportContract):
    @pytest.fixture
    def transport_url(self) -> str:
        return f"memory://contract-{next(_numbers)}"


class TestFolder(TransportContract):
    @pytest.fixture
    def transport_url(self, tmp_path: Path) -> str:
        return f"filesystem://{tmp_path}/broker"


class TestRedis(TransportContract):
    @pytest.fixture
    def transport_url(self, redis_url: Any) -> str:
        return str(redis_url)


class TestTableOfExample(TransportContract):
    @pytest.fixture
    def transport_url(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
        # What the entry point of an installed package does.
        kind = f"{table_transport.__name__}:KIND"
        monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "table": kind})
        return f"table://{tmp_path}/broker.db"


def test_kind_of_plugin_is_found_by_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "table-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: table\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[wbengine.transports]\ntable = examples.table_transport:KIND\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    target = registry.resolve(f"table://{tmp_path}/a.db")
    assert target.kind is table_transport.KIND
    assert target.system == "table"
    with pytest.raises(ValueError, match="did you mean 'table'"):
        registry.check_names("tabel:///x", None, None)
    with pytest.raises(ValueError, match="did you mean 'poll_seconds'"):
        registry.resolve("table:///x", None, {"pol_seconds": 1})
