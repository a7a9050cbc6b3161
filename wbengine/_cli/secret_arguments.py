"""Secrets among the arguments of a command, which all users of the host can see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["warnings_of"]

#: Quick test: arguments without a match contain no secret.
_QUICK_TEST: Final = re.compile(r"://[^/\s]*@|token|passw|secret|credential|key", re.IGNORECASE)

_ALTERNATIVES: Final = {
    **dict.fromkeys(("-b", "--broker", "--url"), "$WBENGINE_URL or $WBENGINE_URL_FILE"),
    **{
        f"--{name}": f"$WBENGINE_{name.upper()} or $WBENGINE_{name.upper()}_FILE"
        for name in ("ledger", "persistence", "payloads", "board")
    },
    "--celery-broker": "$WBENGINE_CELERY_BROKER",
    "--celery-result-backend": "$WBENGINE_CELERY_RESULT_BACKEND",
    "--postgresql": "$WBENGINE_DEV_POSTGRESQL",
    "--token": "--token-file or $WBENGINE_DASHBOARD_TOKEN",
    "--inputs": "--inputs @FILE",
    "--set": "--set NAME=@FILE or --edits FILE",
    "--set-result": "--set-result TASK=@FILE or --edits FILE",
}


def warnings_of(words: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each argument that contains a secret, with a safe alternative."""
    if not _QUICK_TEST.search(" ".join(words)):
        return
    from wbengine._security import (
        masking,  # imported here, because most commands have no secret arguments
    )

    option = ""
    for word in words:
        is_option = word.startswith("-")
        name, equals, _ = word.partition("=")
        checked_text = word if is_option else f"{option} {word}".strip()
        if is_option and not equals:
            option = word
            continue
        if masking.masked(checked_text) != checked_text:
            name = name if is_option else option or "an argument"
            instead = _ALTERNATIVES.get(name, "a file of settings or an environment variable")
            yield (
                f"{name} contains a secret, which all users of this host can see while the command"
                f" runs: pass it in {instead}"
            )
        option = ""
