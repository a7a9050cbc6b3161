"""The public interface equals the list in `public_api.txt`."""

from __future__ import annotations

import difflib
import pathlib
from collections.abc import Iterator

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


def test_documented_member_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no member 'GREEN'"):
        list(public_api.class_entries("m.Page", pathlib.Path, ["GREEN"], {}))


@pytest.fixture
def page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    monkeypatch.setattr(public_api, "REFERENCE", tmp_path)
    public_api.documented.cache_clear()
    yield tmp_path / "page.rst"
    public_api.documented.cache_clear()


@pytest.mark.parametrize(
    "directives",
    [
        ".. autoclass:: m.C\n   :members:\n",
        ".. automethod:: m.C.f\n",
        ".. autofunction:: m._n.f\n",
        ".. autodata:: m.D\n\n.. autodata:: m.D\n",
    ],
)
def test_name_that_is_not_documented_once_with_its_members_is_an_error(
    directives: str, page: pathlib.Path
) -> None:
    page.write_text(directives, encoding="utf-8")
    with pytest.raises(ValueError, match="each name must be public"):
        public_api.documented()
