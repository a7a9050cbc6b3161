"""Planting defects in a small package, whose tests find those of one function."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import tools

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
TESTS = """\
import shop


def test_paid():
    assert [shop.paid(cents) for cents in (-1, 0, 1, 2)] == [False, False, True, True]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "doc" / "source").mkdir(parents=True)
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
    # A comparison, a number and a sum: what is for readers and type checkers is left alone.
    assert "3 defects in 3 places" in ended.stdout
    assert ended.stdout.count("by test_shop.py::test_paid") == 2
    assert "survived  shop.py:13 ReplaceBinaryOperator_Add_Sub" in ended.stdout
    assert "-    return price + count\n    +    return price - count" in ended.stdout
    assert ended.stdout.endswith("shop.py: 2 killed, 0 timed out, 1 survived of 3: 67% (seed 1)\n")
    assert (tree / "shop.py").read_text() == SHOP

    page = tree / "doc" / "source" / "mutation.rst"
    told = "\nWhat survived\n-------------\n\n- Nothing tests the sum.\n"
    page.write_text(page.read_text() + told)
    mutate(*words, "--sample", "1", "--seed", "2")
    text = page.read_text()
    assert text.count("* - shop.py") == 2  # one for each seed
    assert text.endswith("%\n" + told)

    page.write_text(re.sub(r"\d{4}-\d\d-\d\d", "2020-01-01", text))
    mutate(*words, "--sample", "1", "--seed", "2")
    text = page.read_text()
    assert text.count("2020-01-01") == 1  # the row of the other seed
    assert text.count("* - shop.py") == 2


@pytest.mark.slow
def test_tests_that_fail_without_a_defect_are_told(tree: Path) -> None:
    (tree / "test_shop.py").write_text(TESTS.replace("(-1", "(-1, 5"))
    ended = mutate("shop.py", "--tests", "test_shop.py", "--tree", str(tree), code=1)
    assert "the tests fail without a defect" in ended.stderr
    assert "FAILED test_shop.py::test_paid" in ended.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [(["sheduler"], "'sheduler' is no file, and no room"), (["shop.py"], "files need --tests")],
)
def test_wrong_usage_is_one_line(tree: Path, words: list[str], problem: str) -> None:
    ended = mutate(*words, "--tree", str(tree), code=2)
    assert ended.stdout == ""
    assert problem in ended.stderr
    assert ended.stderr.count("\n") == 1
