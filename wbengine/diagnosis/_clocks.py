"""Check of the difference between two clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wbengine.diagnosis.findings import Finding, bad, good

__all__ = ["MAX_DIFFERENCE_SECONDS", "check_clock"]

MAX_DIFFERENCE_SECONDS: Final = 5.0


def check_clock(check: str, whose: str, seconds: float, unsure: float = 0.0) -> Iterator[Finding]:
    """Check a clock that is `seconds` ahead of the clock of this host.

    :param unsure: uncertainty of the measurement in seconds.
    """
    if abs(seconds) - unsure <= MAX_DIFFERENCE_SECONDS:
        yield good(check, f"the clock {whose} agrees with the clock of this host")
        return
    word = "ahead of" if seconds > 0 else "behind"
    yield bad(
        check,
        f"the clock {whose} is {abs(seconds):.0f} s {word} the clock of this host",
        "synchronize both clocks: timedatectl set-ntp true, or chrony, on each host",
    )
