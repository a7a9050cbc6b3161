"""What a run counts and measures of itself."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

__all__ = ["Figures"]


@dataclass(slots=True)
class Figures:
    """Written by the run loop; reading is fine from any thread, at any time."""

    #: How many outcomes were handled.
    completed: int = 0
    #: How many calls were taken back before they started.
    withdrawn: int = 0
    #: How many failures arrived when the run was over already; the next run resolves them.
    discarded: int = 0
    #: How long the loop spent in each of its states, when that is measured.
    seconds_per_state: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
