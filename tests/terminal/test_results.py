"""The results that `flow run` prints on a terminal."""

from __future__ import annotations

import json

from tests.terminal.conftest import Shop
from tests.terminal.flows import MAP_ITEMS

UUID = "22222222-0000-4000-8000-000000000001"


def test_long_results_are_shortened_on_terminal_and_stay_whole_elsewhere(shop: Shop) -> None:
    shop.go()
    run = shop.run(f"flow run :numbers --flow-id {UUID}", lines=120)
    text = run.scrollback
    result = json.loads(text[text.index("{") : text.rindex("}") + 1])["results"]["halved"]
    assert result == [*range(20), f"... and {MAP_ITEMS - 20} more"]
    command = f"wbengine flow show {UUID} --results"
    assert f"all: {command}" in " ".join(run.scrollback.split())
    shown = shop.run(command.partition(" ")[2], lines=1000)
    whole = json.loads(shown.text)["results"]["halves"]
    assert len(whole) == MAP_ITEMS and whole[98:100] == [98, "<Failure: ValueError: 99 is bad>"]
    with shop.terminal("flow run :numbers", piped=True) as piped:
        assert piped.end() == 0
    assert len(json.loads(piped.piped_output)["results"]["halved"]) == MAP_ITEMS
    assert "are shown" not in piped.scrollback
