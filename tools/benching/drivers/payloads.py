"""Payloads: distinct texts that do not compress well."""

from __future__ import annotations

import random
import string

_LETTERS = string.ascii_letters + string.digits


def texts(count: int, size: int) -> list[str]:
    """Return the same texts on each call."""
    drawn = random.Random(1)
    base = "".join(drawn.choices(_LETTERS, k=size))
    return [(f"{number:08}" + base)[:size] for number in range(count)]
