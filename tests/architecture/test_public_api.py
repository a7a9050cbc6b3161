"""The public interface equals the list in `public_api.txt`."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import types

import pytest

from . import public_api

_ADVICE = """\
The public interface differs from tests/architecture/public_api.txt (- listed, + in the code):

{difference}

A removed line or a changed signature breaks programs of users: keep the old name or call for at
least one minor version, with a DeprecationWarning and a line in CHANGELOG.md (see "Versions and
compatibility" in the documentation). If the change is intended, update the list:

    python -m tests.architecture.public_api"""


def compare(listed: list[str], current: list[str]) -> str | None:
    """Return a message that shows the difference, or None."""
    lines = difflib.unified_diff(listed, current, n=0, lineterm="")
    changes = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    return _ADVICE.format(difference="\n".join(changes)) if changes else None


def test_public_interface_equals_the_list() -> None:
    listed = public_api.FILE.read_text(encoding="utf-8").splitlines()
    message = compare(listed, public_api.entries())
    assert message is None, message


def test_removed_and_changed_entries_are_shown() -> None:
    listed = ["function a.f(x)", "function a.g()", "setting url"]
    message = compare(listed, ["function a.f(x, y=1)", "setting url"])
    assert message is not None
    changes = [line for line in message.splitlines() if line.startswith(("-", "+"))]
    assert changes == ["-function a.f(x)", "-function a.g()", "+function a.f(x, y=1)"]


class _Hidden:
    def inherited(self) -> None: ...


class Shown(_Hidden):
    kind: str = "a"

    def __init__(self, size: int, *, kind: str = "b", factory: object = object()) -> None:
        self.size = size
        self._secret = 0

    @classmethod
    def of(cls, text: str = "x") -> None: ...

    @property
    def value(self) -> int:
        return self.size


@dataclasses.dataclass
class Data:
    number: int
    names: list[str] = dataclasses.field(default_factory=list)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (
            Shown,
            [
                "attribute m.Shown.kind",
                "attribute m.Shown.size",
                "attribute m.Shown.value",
                "class m.Shown(size, *, kind='b', factory=...)",
                "method m.Shown.inherited()",
                "method m.Shown.of(text='x')",
            ],
        ),
        (
            Data,
            [
                "attribute m.Data.names",
                "attribute m.Data.number",
                "class m.Data(number, names=...)",
            ],
        ),
        (Color, ["attribute m.Color.RED", "class m.Color"]),
    ],
)
def test_class_is_listed_with_its_public_members(
    cls: type, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_api, "is_ours", lambda owner: owner.__module__ == __name__)
    tree = public_api.parse(__file__)
    monkeypatch.setattr(public_api, "tree", lambda module: tree)
    assert sorted(public_api.class_entries(f"m.{cls.__name__}", cls, set())) == expected


def test_documented_and_imported_modules_without_underscore_are_public(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        ".. automodule:: wbengine.task",
        ".. automodule:: wbengine._concurrency.clocks",
        "   from wbengine.engines import base, load",
        "   import wbengine.flow",
        "The module wbengine.states",
    ]
    monkeypatch.setattr(public_api, "documentation", lambda: lines)
    names = ["wbengine.engines", "wbengine.engines.base", "wbengine.flow", "wbengine.task"]
    assert public_api.modules() == names


def test_module_without_all_lists_its_own_definitions() -> None:
    module = types.ModuleType("wbengine.states")
    names = public_api.names(module)
    assert "SUCCESS" in names and "annotations" not in names
