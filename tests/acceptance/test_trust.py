"""The page of what one trusts: of each party it says what is shown, by a test that exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.workers import REPOSITORY

PAGE = REPOSITORY / "doc" / "source" / "user" / "trust.rst"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"``(tests/[\w/]+\.py::\w+)``", TEXT)))


def rows(title: str) -> list[tuple[str, list[str]]]:
    """The party, and the tests that are named, of each row of the table below a title."""
    _, _, rest = TEXT.partition(f"\n{title}\n")
    table = re.split(r"\n\n(?=\S)", rest.partition(".. list-table::")[2])[0]
    found = [(row.split("\n")[0], row) for row in table.split("\n   * - ")[2:]]
    return [(name, re.findall(r"``(tests/[^`]+)``", row)) for name, row in found]


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_exists(name: str) -> None:
    path, _, function = name.partition("::")
    module = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    defined = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    assert function in defined, f"{name}: renamed or gone; is what {PAGE.name} says still true?"


def test_of_each_party_it_is_said_what_is_shown() -> None:
    parties = [party for party, _ in rows("Parties")]
    shown = rows("Which test shows it")
    assert len(parties) == len(set(parties)) > 10
    assert list(dict.fromkeys(party for party, _ in shown)) == parties
    assert sum(len(tests) for _, tests in shown) >= len(NAMED) > 30


def test_only_what_cannot_be_shown_names_no_test() -> None:
    silent = [party for party, tests in rows("Which test shows it") if not tests]
    assert silent == ["who may read the store", "the author of a module of tasks or flows"]
    assert TEXT.count("     - not shown: ") == len(silent)
