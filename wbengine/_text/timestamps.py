"""Points in time as text, such as '2026-11-21T08:00' or '7d' (before now)."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from wbengine._text import durations

__all__ = ["unix_seconds"]


def unix_seconds(text: str) -> float:
    """Return the Unix time of a date and time, by default in UTC, or of a duration before now.

    :raises ValueError: if the text is neither.
    """
    if (ago := durations.seconds(text)) is not None:
        return time.time() - ago
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            "must be a time such as 2026-11-21T08:00 (UTC) or a duration such as 2h (before now),"
            f" got {text!r:.80}"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
