"""Lua scripts are loaded from files, with their arguments, shared files and constants."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.brokers import Broker
from wbengine._redis.lua_scripts import Scripts, Step


class Pair(NamedTuple):
    name: str
    is_set: bool
    others: Sequence[int] = ()


Declare = Callable[[str, Callable[..., Any]], Callable[..., Step[Any]]]


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Function that writes the text of a script and declares it."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "first.lua").write_text("local first = LIMIT\n")
    (tmp_path / "shared" / "second.lua").write_text("-- include first\nlocal second = first\n")

    def declare(text: str, function: Callable[..., Any]) -> Callable[..., Step[Any]]:
        (tmp_path / f"{function.__name__}.lua").write_text(text)
        scripts = Scripts(tmp_path, {"LIMIT": 5, "NAME": "text"})
        step = scripts.declare(function)
        assert list(scripts) == [function.__name__]
        return step

    return declare


def test_shared_file_is_inserted_once_before_its_first_use(declare: Declare) -> None:
    def total(reply: Any) -> int: ...

    step = declare("-- include second\n-- include first\nreturn first + second\n", total)()
    assert step.script.text.endswith(
        "local first = LIMIT\nlocal second = first\nreturn first + second\n"
    )
    assert step.script.text.startswith("local LIMIT = 5\nlocal NAME = 'text'\n")
    assert step.script.digest == hashlib.sha1(step.script.text.encode()).hexdigest()


def test_unknown_shared_file_is_refused(declare: Declare) -> None:
    def lacking(reply: Any) -> None: ...

    with pytest.raises(KeyError, match="missing"):
        declare("-- include missing\n", lacking)


def test_function_converts_the_reply_with_its_arguments(declare: Declare) -> None:
    def named(reply: Any, name: str, number: int = 3) -> tuple[Any, str, int]:
        return reply, name, number

    step = declare("return 1", named)
    assert step("a").read("reply") == ("reply", "a", 3)
    assert step(number=1, name="b").read("reply") == ("reply", "b", 1)
    with pytest.raises(TypeError):
        step("a", 1, 2)


@pytest.mark.parametrize(
    ("hint", "lua", "values"),
    [
        (str, "v", {"a": b"a", "": b""}),
        (bool, "{v and 1 or 0, v == false and 1 or 0}", {True: [1, 0], False: [0, 1]}),
        (int | None, "{v, type(v)}", {7: [b"7", b"string"], None: [b"", b"string"]}),
        (Sequence[int], "v", {(): [], (1, 2): [b"1", b"2"]}),
        (tuple[str, bool], "{v[1], v[2] and 1 or 0, #v}", {("a", True): [b"a", 1, 2]}),
        (
            Sequence[Pair],
            "{#v, v[#v].name, v[#v].is_set and 1 or 0, v[1].others}",
            {(Pair("a", False, (1, 2)), Pair("b", True, ())): [2, b"b", 1, [b"1", b"2"]]},
        ),
        (Pair | None, "{v and v.name or 0}", {None: [0], Pair("a", True, (1,)): [b"a"]}),
        (
            Sequence[tuple[str, Sequence[Pair]]],
            "{v[1][2][1].others, v[2][1]}",
            {(("a", (Pair("p", True, (4,)),)), ("b", ())): [[b"4"], b"b"]},
        ),
    ],
    ids=str,
)
def test_argument_of_each_type_is_passed_to_the_script(
    declare: Declare, redis_server: Broker, hint: Any, lua: str, values: dict[Any, Any]
) -> None:
    def passed(reply: Any, before: str, v: Any, after: int) -> Any:
        return reply

    passed.__annotations__["v"] = hint
    step = declare(f"return {{{lua}, before .. after}}", passed)
    with redis_server.client() as client:
        for value, expected in values.items():
            made = step("<", value, 9)
            assert client.eval(made.script.text, 0, *made.arguments) == [expected, b"<9"]
