"""Lua scripts: their files, arguments, shared files and constants, and replies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wbengine._redis.lua_scripts import Scripts, Step
from wbengine.transports._ledger import NO_FENCE
from wbengine.transports._redis import redis_scripts

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


def test_reply_with_another_number_of_rows_is_refused() -> None:
    read = redis_scripts.read_rows(["a", "b"]).read
    assert read([2, [None, None]]) == [None, None]
    with pytest.raises(ValueError, match="shorter"):
        read([2, [None]])


def test_revocation_without_removed_row_has_no_claim_count() -> None:
    read = redis_scripts.revoke_rows([("a", 1, NO_FENCE)]).read
    assert read([[0], None]) == ([False], 0)
    assert read([[1], 7]) == ([True], 7)


def test_keys_expire_after_the_documented_times() -> None:
    constants = redis_scripts.CONSTANTS
    assert constants["OWNED_QUEUE_MS"] == 10 * 60 * 1000
    assert constants["UNUSED_KEY_MS"] == constants["ROW_MS"] == 7 * 24 * 3600 * 1000
    numbers = [value for name, value in constants.items() if name.endswith("_MS")]
    assert all(isinstance(value, int) for value in numbers)  # Redis rejects fractions.
