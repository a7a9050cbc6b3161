"""Plug-ins from entry points of installed packages."""

from __future__ import annotations

import configparser

import pytest

from tests.support import servers
from wbengine._configuration import plugins
from wbengine.conductors import backends as conductor_kinds
from wbengine.exceptions import NotFound
from wbengine.jobs import backends as board_kinds
from wbengine.persistence import backends as store_kinds
from wbengine.transports import _kinds as transport_kinds


@pytest.fixture
def installed(tmp_path, monkeypatch):
    info = tmp_path / "wb_plug-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wb-plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[wb.group]\nserial = json:dumps\nalpha = json:loads\nbroken = no_such_module:x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_find_loads_installed_plugin(installed):
    import json

    assert plugins.names("wb.group") == ["alpha", "broken", "serial"]
    assert plugins.find("wb.group", "serial") is json.dumps


def test_not_found_error_lists_installed_and_similar_plugins(installed):
    with pytest.raises(NotFound) as caught:
        plugins.find("wb.group", "serail")
    assert "'serail' (did you mean 'serial'?)" in str(caught.value)
    assert "alpha, broken, serial" in str(caught.value)


def test_plugin_import_error_is_raised_unchanged(installed):
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        plugins.find("wb.group", "broken")


def test_unknown_plugin_group_is_empty():
    assert plugins.names("wb.no.such.group") == []
    with pytest.raises(NotFound, match="nothing is installed"):
        plugins.find("wb.no.such.group", "x")


KINDS = {
    "conductors": (conductor_kinds.CONDUCTOR_NAMESPACE, conductor_kinds.KINDS),
    "job-boards": (board_kinds.BACKEND_NAMESPACE, board_kinds.KINDS),
    "stores": (store_kinds.BACKEND_NAMESPACE, store_kinds.KINDS),
    "transports": (transport_kinds.GROUP, transport_kinds.KINDS),
}


@pytest.mark.parametrize(("group", "kinds"), KINDS.values(), ids=KINDS)
def test_each_builtin_kind_is_an_entry_point(group, kinds):
    """Lists of plug-ins show the entry points of setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(servers.REPOSITORY / "setup.cfg")
    offered = setup["options.entry_points"][group].strip().splitlines()
    found = dict(line.partition(" [")[0].split(" = ") for line in offered)  # without extras
    assert found == dict(kinds)
