"""`tools/mutate` on a small package with one tested function."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import tools, workers
from tools.benching import rst
from tools.mutating import table

SHOP = '''\
"""A shop."""

LIMIT: int | None = None


def paid(cents: int | None) -> bool:
    """1 or more."""
    return cents > 0


def total(price: int, count: int) -> int:
    """Nothing tests it."""
    return price + count


class Order:
    def __repr__(self) -> str:
        return f"{1 + 1}"
'''
HANDLERS = """

def read() -> int:
    try:
        return 1
    except (re.error, KeyError):
        return 2
    except re.error:
        return 3
"""
TESTS = """\
import shop


def test_paid():
    assert [shop.paid(cents) for cents in (-1, 0, 1, 2)] == [False, False, True, True]
"""


PAGE = """\
Before.

.. begin figures: mutants

.. end figures: mutants

After.
"""


def page_of(tree: Path) -> Path:
    return tree / "doc" / "source" / "explanation" / "how_it_is_tested.rst"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "doc" / "source" / "explanation").mkdir(parents=True)
    page_of(tree).write_text(PAGE)
    (tree / "shop.py").write_text(SHOP)
    (tree / "test_shop.py").write_text(TESTS)
    return tree


def mutate(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return tools.run("mutate", "--jobs", 1, *words, code=code)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tested_defects_are_killed_and_others_survive(tree: Path) -> None:
    words = ("shop.py", "--tests", "test_shop.py", "--tree", str(tree), "--sample", "9", "--record")
    ended = mutate(*words)
    # The mutants change a comparison, a number and a sum, but no docstring or annotation.
    assert "3 defects in 3 places" in ended.stdout
    assert ended.stdout.count("by test_shop.py::test_paid") == 2
    assert "survived  shop.py:13 ReplaceBinaryOperator_Add_Sub" in ended.stdout
    assert "-    return price + count\n    +    return price - count" in ended.stdout
    assert ended.stdout.endswith("shop.py: 2 killed, 0 timed out, 1 survived of 3: 67% (seed 1)\n")
    assert (tree / "shop.py").read_text() == SHOP

    page = page_of(tree)
    mutate(*words, "--sample", "1", "--seed", "2")
    text = page.read_text()
    assert text.count("\nshop.py  ") == 2  # one row for each seed
    assert text.startswith("Before.\n") and text.endswith("\nAfter.\n")

    page.write_text(re.sub(r"\d{4}-\d\d-\d\d", "2020-01-01", text))
    mutate(*words, "--sample", "1", "--seed", "2")
    text = page.read_text()
    assert text.count("2020-01-01") == 1  # the row of the other seed is unchanged
    assert text.count("\nshop.py  ") == 2


def test_row_of_same_part_and_seed_is_replaced_on_page(tmp_path: Path) -> None:
    text = page_of(workers.REPOSITORY).read_text(encoding="utf-8")
    before = table.read(rst.places(text)[table.PLACE])
    assert before == sorted(before, key=lambda row: row.part)
    page = tmp_path / "page.rst"
    page.write_text(text, encoding="utf-8")
    new = dataclasses.replace(before[0], date="2031-01-01", killed=0, survived=before[0].mutants)
    table.record(page, new)
    written = page.read_text(encoding="utf-8")
    assert table.read(rst.places(written)[table.PLACE]) == [new, *before[1:]]
    assert written.partition(".. begin figures")[0] == text.partition(".. begin figures")[0]


@pytest.mark.slow
def test_handler_of_dotted_exceptions_is_left_unchanged(tree: Path) -> None:
    (tree / "shop.py").write_text(SHOP + HANDLERS)
    ended = mutate(
        "shop.py", "--tests", "test_shop.py", "--tree", str(tree), "--sample", "99", "--seed", "3"
    )
    assert ended.stdout.count("ExceptionReplacer") == 1  # of KeyError


@pytest.mark.slow
def test_failing_tests_without_defect_are_reported(tree: Path) -> None:
    (tree / "test_shop.py").write_text(TESTS.replace("(-1", "(-1, 5"))
    ended = mutate("shop.py", "--tests", "test_shop.py", "--tree", str(tree), code=1)
    assert "the tests fail without a defect" in ended.stderr
    assert "FAILED test_shop.py::test_paid" in ended.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [(["sheduler"], "'sheduler' must be a file or one of"), (["shop.py"], "files require --tests")],
)
def test_wrong_usage_is_reported_in_one_line(tree: Path, words: list[str], problem: str) -> None:
    ended = mutate(*words, "--tree", str(tree), code=2)
    assert ended.stdout == ""
    assert problem in ended.stderr
    assert ended.stderr.count("\n") == 1
