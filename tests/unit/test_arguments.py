"""Where the value of an argument comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from wbengine import arguments, exceptions


class Maker(NamedTuple):
    node: int
    index: Any


class Scope:
    """Providers by name, nearest first; counts how far one had to look."""

    by_name: dict[str, int] = {}
    firsts: dict[int, dict[str, Maker | None]] = {}

    def __init__(self, **providers: list[Maker]) -> None:
        self.providers = providers
        self.looked = 0

    def first(self, node: int, name: str) -> Maker | None:
        return next(iter(self.providers.get(name, ())), None)

    def candidates(self, node: int, name: str) -> Iterator[Maker]:
        for provider in self.providers.get(name, ()):
            self.looked += 1
            yield provider


RESULTS: dict[int, Any] = {1: "one", 2: ("a", "b"), 3: {"key": "value"}}


def read(node: int, index: Any) -> Any:
    if node not in RESULTS:
        return arguments.MISSING
    return arguments.element(RESULTS[node], index)


def gather(
    scope: Scope, *sources: dict[str, Any], optional: tuple[str, ...] = (), **rebind: str
) -> Any:
    return arguments.gather(rebind, optional, sources, scope, 9, read)


def test_sources_come_first_in_their_order() -> None:
    """The first source that has the name wins over the others and over providers."""
    scope = Scope(x=[Maker(1, None)])
    assert gather(scope, {"x": 1}, {"x": 2}, a="x") == {"a": 1}
    assert gather(scope, {"y": 1}, {"x": None}, a="x") == {"a": None}


def test_the_nearest_provider_is_read_without_search() -> None:
    """O(1) in the usual case."""
    scope = Scope(x=[Maker(2, 1), Maker(1, None)], y=[Maker(3, "key")])
    assert gather(scope, a="x", b="y") == {"a": "b", "b": "value"}
    assert scope.looked == 0


@pytest.mark.parametrize("nearest", [Maker(7, None), Maker(2, 5), Maker(3, "no"), Maker(1, "s")])
def test_a_provider_without_the_value_is_skipped(nearest: Maker) -> None:
    """It was ignored, or its result has no such part."""
    assert gather(Scope(x=[nearest, Maker(1, None)]), a="x") == {"a": "one"}


def test_optional_arguments_are_left_out() -> None:
    """The default applies; others raise."""
    scope = Scope(x=[Maker(7, None)])
    assert gather(scope, optional=("a", "b"), a="x", b="z") == {}
    with pytest.raises(exceptions.NotFound, match="argument 'a'"):
        gather(scope, optional=("x",), a="x", x="x")  # x is optional, a is not
    with pytest.raises(exceptions.NotFound, match=r"'x'.*argument 'a'.*ignored"):
        gather(scope, a="x")
    with pytest.raises(exceptions.NotFound, match=r"nothing visible provides it.*'number'"):
        gather(scope, {"number": 1}, a="numbr")


def test_unsatisfied_names_what_nothing_can_provide() -> None:
    """Providers need not have run, what optional arguments ask for need not exist."""
    scope = Scope(x=[Maker(7, None)])
    rebind = {"a": "x", "b": "y", "c": "z", "d": "w"}
    assert arguments.unsatisfied(rebind, {"d"}, [{"y": 1}], scope, 9) == {"c": "z"}
