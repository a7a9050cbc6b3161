"""Whether clocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wbengine.diagnosis.findings import Finding, bad, good

__all__ = ["MOST", "ahead"]

#: Seconds that two clocks may differ.
MOST: Final = 5.0


def ahead(check: str, whose: str, seconds: float, unsure: float = 0.0) -> Iterator[Finding]:
    """What it means that a clock is ahead of this host's by so many seconds, give or take some."""
    if abs(seconds) - unsure <= MOST:
        yield good(check, f"the clock {whose} agrees with that of this host")
        return
    word = "ahead of" if seconds > 0 else "behind"
    yield bad(
        check,
        f"the clock {whose} is {abs(seconds):.0f} s {word} that of this host",
        "set both clocks, and keep them right: timedatectl set-ntp true (or chrony, on each host)",
    )
