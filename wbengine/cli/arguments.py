"""Secrets among the arguments of a command, which every user of the host can see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["warnings_of"]

#: Where none of these is said, there is none.
_HINT: Final = re.compile(r"://[^/\s]*@|token|passw|secret|credential|key", re.IGNORECASE)

_INSTEAD: Final = {
    **dict.fromkeys(("-b", "--broker", "--url"), "$WBENGINE_URL, or $WBENGINE_URL_FILE"),
    **{
        f"--{name}": f"$WBENGINE_{name.upper()}, or $WBENGINE_{name.upper()}_FILE"
        for name in ("ledger", "persistence", "board")
    },
    "--celery-broker": "$WBENGINE_CELERY_BROKER",
    "--celery-result-backend": "$WBENGINE_CELERY_RESULT_BACKEND",
    "--token": "--token-file, or $WBENGINE_DASHBOARD_TOKEN",
    "--inputs": "--inputs @FILE",
}


def warnings_of(words: Sequence[str]) -> Iterator[str]:
    """A line for each of a command's arguments that holds a secret: what it is, and what to give
    instead.
    """
    if not _HINT.search(" ".join(words)):
        return
    from wbengine import _secrets  # not on top: most commands are told none

    option = ""
    for word in words:
        is_option = word.startswith("-")
        name, equals, _ = word.partition("=")
        told = word if is_option else f"{option} {word}".strip()
        if is_option and not equals:
            option = word
            continue
        if _secrets.masked(told) != told:
            name = name if is_option else option or "an argument"
            instead = _INSTEAD.get(name, "a file of settings, or a variable")
            yield (
                f"{name} holds a secret, which every user of this host can see while this runs:"
                f" give it by {instead}"
            )
        option = ""
