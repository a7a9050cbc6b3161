"""The pages on security, guarantees and tests name tests for their statements, which exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.workers import REPOSITORY

FOLDER = REPOSITORY / "doc" / "source" / "explanation"
NAMES = ("security.rst", "delivery_guarantees.rst", "how_it_is_tested.rst")
PAGES = {name: FOLDER / name for name in NAMES}
TEXTS = {name: page.read_text(encoding="utf-8") for name, page in PAGES.items()}
NAMED = {
    name: sorted(set(re.findall(r"``(tests/[\w/]+\.py::\w+)``", text)))
    for name, text in TEXTS.items()
}


def rows(page: str, title: str) -> list[tuple[str, list[str]]]:
    """Return the first cell and the named tests of each row of the table below a title."""
    _, _, following = TEXTS[page].partition(f"\n{title}\n")
    table = re.split(r"\n\n(?=\S)", following.partition(".. list-table::")[2])[0]
    cells = [(row.split("\n     - ")[0], row) for row in table.split("\n   * - ")[2:]]
    return [(first, re.findall(r"``(tests/[^`]+)``", row)) for first, row in cells]


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page, names in NAMED.items() for name in names]
)
def test_named_test_exists(page: str, name: str) -> None:
    path, _, function = name.partition("::")
    module = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    defined = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    assert function in defined, f"{name}: renamed or deleted; is the statement in {page} true?"


def test_each_party_has_a_row_in_the_table_of_tests() -> None:
    parties = [party for party, _ in rows("security.rst", "Parties")]
    shown = rows("security.rst", "Tests")
    assert len(parties) == len(set(parties)) > 10
    assert [party for party, _ in shown] == parties
    assert sum(len(tests) for _, tests in shown) >= len(NAMED["security.rst"]) > 30


def test_only_statements_that_cannot_be_tested_name_no_test() -> None:
    silent = [party for party, tests in rows("security.rst", "Tests") if not tests]
    assert silent == ["author of tasks or flows"]
    assert TEXTS["security.rst"].count("     - not tested: ") == len(silent)


def test_each_guarantee_names_a_test() -> None:
    guarantees = rows("delivery_guarantees.rst", "Guarantees")
    assert len(guarantees) > 15
    assert [guarantee for guarantee, tests in guarantees if not tests] == []


def test_each_promise_names_a_directed_test() -> None:
    promises = rows("how_it_is_tested.rst", "Directed tests")
    assert len(promises) > 10
    assert [promise for promise, tests in promises if not tests] == []
