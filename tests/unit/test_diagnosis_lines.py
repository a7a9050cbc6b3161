"""Sequential checks: a skipped check differs from one that timed out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from wbengine.diagnosis import _examining, findings


def test_check_without_remaining_time_is_reported_as_skipped() -> None:
    over = threading.Event()

    def checks(line: _examining.Line) -> Iterator[findings.Finding]:
        over.wait()
        yield findings.good("store", "it answers")

    (found,) = _examining.Line("store", checks, time.monotonic() - 2.0).findings()
    over.set()
    words = "skipped: the previous checks used all the time"
    assert (found.check, found.good, found.text) == ("store", False, words)
