"""Plug-ins come from entry points of installed packages."""

from __future__ import annotations

import configparser

import pytest

from tests.support import servers
from wbengine import _plugins
from wbengine.conductors import backends as conductor_kinds
from wbengine.exceptions import NotFound
from wbengine.jobs import backends as board_kinds
from wbengine.persistence import backends as store_kinds


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


@pytest.mark.parametrize(
    ("group", "kinds"),
    [
        (conductor_kinds.CONDUCTOR_NAMESPACE, conductor_kinds.KINDS),
        (board_kinds.BACKEND_NAMESPACE, board_kinds.KINDS),
        (store_kinds.BACKEND_NAMESPACE, store_kinds.KINDS),
    ],
)
def test_every_kind_of_ours_is_an_entry_point_too(group, kinds):
    """As setup.cfg offers them, so that plug-in lists show them."""
    setup = configparser.ConfigParser()
    setup.read(servers.REPOSITORY / "setup.cfg")
    offered = setup["options.entry_points"][group].strip().splitlines()
    found = dict(line.partition(" [")[0].split(" = ") for line in offered)  # without extras
    assert found == dict(kinds)
