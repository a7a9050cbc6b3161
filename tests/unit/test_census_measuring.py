"""What the census counts in a file, and how counts are added."""

from __future__ import annotations

import random
import textwrap
import threading
import warnings

import pytest

from wbengine.examples.census import measuring


def measure(text: str, path: str = "a.py") -> measuring.Counts:
    return measuring.measure(path, textwrap.dedent(text).encode())


def test_counts_every_kind_of_thing():
    counts = measure(
        '''
        """A module."""
        import os, sys
        from a import b  # counts once each

        # a comment
        class A:
            async def first(self):
                import json

            def second(self):
                def inner():
                    pass
                lambda: 0
        '''
    )

    assert counts["files"] == 1
    assert (counts["lines"], counts["code"]) == (14, 10)
    assert (counts["functions"], counts["classes"], counts["imports"]) == (3, 1, 3)
    assert counts["longest"] == {"lines": 4, "name": "A.second", "at": "a.py:11"}
    assert counts["deepest"] == {"depth": 3, "at": "a.py:13"}
    assert counts["unparsed"] == []


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("x = 1", 0),
        ("if a:\n x\nelif b:\n y\nelif c:\n z", 1),
        ("if a:\n x\nelse:\n if b:\n  y", 2),
        ("for a in b:\n x\nelse:\n y", 1),
        ("try:\n x\nexcept A:\n y\nfinally:\n z", 1),
        ("match a:\n case 1:\n  while True:\n   x", 2),
        ("with a:\n with b:\n  class C:\n   def d(): x", 4),
    ],
)
def test_depth_counts_the_blocks_around_a_statement(text, depth):
    counts = measure(text)
    assert counts["deepest"] is not None
    assert counts["deepest"]["depth"] == depth


def test_an_empty_file_has_no_longest_and_no_deepest():
    assert measure("") == {**measuring.nothing(), "files": 1}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"print 'no'", "SyntaxError"),
        (b"# coding: nonsense\n", "SyntaxError"),
        (b"x = '\xff'\n", "invalid or missing encoding"),
        (b"# coding: ascii\nx = '\xff'\n", "UnicodeDecodeError"),
        (b"x = 1\x00", "null byte"),
        (b"(" * 300 + b")" * 300, "nested parentheses"),
    ],
)
def test_what_does_not_parse_is_counted_and_named(source, why):
    counts = measuring.measure("b/c.py", source)

    assert [item["path"] for item in counts["unparsed"]] == ["b/c.py"]
    assert why in counts["unparsed"][0]["why"]
    assert {**counts, "unparsed": []} == {**measuring.nothing(), "files": 1}


def test_declared_encodings_and_byte_order_marks_are_read():
    latin = measuring.measure("l.py", b"# coding: latin-1\nx = '\xe9'\n")
    marked = measuring.measure("m.py", b"\xef\xbb\xbf# only a comment\n")

    assert latin["code"] == 1
    assert not latin["unparsed"]
    assert (marked["lines"], marked["code"], marked["unparsed"]) == (1, 0, [])


def test_code_nested_deeper_than_the_interpreter_recurses_is_walked():
    chain = "if a: x\n" + "elif b: y\n" * 900
    assert measure(chain)["deepest"] == {"depth": 1, "at": "a.py:1"}


def test_warnings_about_the_sources_are_not_shown_in_any_thread():
    source = b"x = '\\d'\nassert (1, 'always')\n"
    found: list[measuring.Counts] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work = [
            threading.Thread(target=lambda: found.append(measuring.measure("w.py", source)))
            for _ in range(4)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()

    assert [counts["unparsed"] for counts in found] == [[]] * 4


def test_adding_does_not_depend_on_order():
    texts = ["def a():\n x\n y", "def b():\n x\n y", "print 0", "for a in b:\n c", "", "import a"]
    parts = [measure(text, f"{number}.py") for number, text in enumerate(texts)]
    expected = measuring.add(parts)
    dice = random.Random(5)
    for _ in range(20):
        dice.shuffle(parts)
        cut = dice.randrange(len(parts))
        assert measuring.add([measuring.add(parts[:cut]), measuring.add(parts[cut:])]) == expected
    assert expected["longest"] == {"lines": 3, "name": "a", "at": "0.py:1"}
    assert expected["files"] == 6
