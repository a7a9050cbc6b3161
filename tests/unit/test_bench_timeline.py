"""The functions that `tools/bench --timeline` records."""

from __future__ import annotations

import inspect

from tools.benching import timeline
from tools.benching.drivers import recording


def test_recorded_functions_exist_and_work_until_they_return() -> None:
    """A generator function returns before it works, so its calls would seem to take no time."""
    definitions = {name: recording.find(name)[2] for name in timeline.FUNCTIONS}
    generators = [name for name, each in definitions.items() if inspect.isgeneratorfunction(each)]
    assert generators == []


def test_waits_and_calls_that_end_them_are_recorded() -> None:
    calls = {*timeline.WAITS, *timeline.WAITS.values(), *timeline.RECEIVES}
    calls |= {*timeline.SENDS, *timeline.SENDS.values()}
    assert calls <= {*timeline.FUNCTIONS}
