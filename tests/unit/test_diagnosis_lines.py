"""Checks in a line: what was never tried is told from what took too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from wbengine.diagnosis import findings, lines


def test_what_begins_when_all_time_is_over_was_not_tried() -> None:
    over = threading.Event()

    def checks(line: lines.Line) -> Iterator[findings.Finding]:
        over.wait()
        yield findings.good("store", "it answers")

    (found,) = lines.Line("store", checks, time.monotonic() - 2.0).findings()
    over.set()
    words = "not tried: what comes before it took all the time"
    assert (found.check, found.good, found.text) == ("store", False, words)
