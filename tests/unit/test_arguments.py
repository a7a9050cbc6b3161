"""Sources of argument values. `test_storage_rules` covers their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wbengine._tasks import arguments


class Maker(NamedTuple):
    node: int
    index: Any


class Scope:
    """Scope with one provider for each name; a search raises."""

    by_name: Mapping[str, int] = {}
    firsts: Mapping[int, Mapping[str, Maker | None]] = {}

    def first(self, node: int, name: str) -> Maker | None:
        return {"x": Maker(0, 1), "y": Maker(1, "key")}[name]

    def candidates(self, node: int, name: str) -> Iterator[Maker]:
        raise AssertionError("it was searched")


def test_nearest_provider_is_read_without_search() -> None:
    results: list[Any] = [("a", "b"), {"key": "value"}]

    def read(node: int, index: Any) -> Any:
        return arguments.element(results[node], index)

    found = arguments.gather({"a": "x", "b": "y"}, (), (), Scope(), 9, read)
    assert found == {"a": "b", "b": "value"}
