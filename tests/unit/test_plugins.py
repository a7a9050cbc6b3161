"""Plug-ins come from entry points of installed packages."""

from __future__ import annotations

import pytest

from wbengine import _plugins
from wbengine.exceptions import NotFound


@pytest.fixture
def installed(tmp_path, monkeypatch):
    info = tmp_path / "wb_plug-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wb-plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[wb.group]\nserial = json:dumps\nalpha = json:loads\nbroken = no_such_module:x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_find_loads_what_is_on_offer(installed):
    import json

    assert _plugins.names("wb.group") == ["alpha", "broken", "serial"]
    assert _plugins.find("wb.group", "serial") is json.dumps


def test_not_found_names_what_is_on_offer_and_what_is_near(installed):
    with pytest.raises(NotFound) as caught:
        _plugins.find("wb.group", "serail")
    assert "'serail' (did you mean 'serial'?)" in str(caught.value)
    assert "alpha, broken, serial" in str(caught.value)


def test_a_plug_in_that_does_not_import_says_so_itself(installed):
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _plugins.find("wb.group", "broken")


def test_an_unknown_group_is_empty():
    assert _plugins.names("wb.no.such.group") == []
    with pytest.raises(NotFound, match="nothing is installed"):
        _plugins.find("wb.no.such.group", "x")
