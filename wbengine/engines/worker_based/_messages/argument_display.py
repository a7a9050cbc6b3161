"""Headers that display the arguments of a request in monitoring tools for brokers."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any, Final

from wbengine.engines.worker_based._messages import headers as hd

#: Maximum number of characters.
MAX_LENGTH: Final = 200
#: Replaces secret values.
MASK: Final = "***"

_PLAIN: Final = (bool, float, type(None))

_SECRET: Final = re.compile("password|token|secret|key", re.IGNORECASE)


class _Repr(reprlib.Repr):
    """Bounded repr of any value, which masks secrets at all depths."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 10
        self.maxstring = self.maxother = 60

    def repr_dict(self, x: Any, level: int) -> str:
        if level <= 0:
            return "{...}"
        shown = [
            f"{self.repr1(key, level - 1)}: {MASK if _hides(key) else self.repr1(value, level - 1)}"
            for key, value in list(x.items())[: self.maxdict]
        ]
        return "{" + ", ".join([*shown, *(["..."] if len(x) > self.maxdict else [])]) + "}"

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, _PLAIN):
            return repr(x)
        return f"<{type(x).__name__}>"  # The repr of an object may contain a secret.


def _hides(key: Any) -> bool:
    return isinstance(key, str) and _SECRET.search(key) is not None


def headers(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that display the arguments, truncated.

    A value is masked if its name contains password, token, secret or key.
    """
    try:
        text = _Repr().repr(dict(arguments))
    except Exception as error:  # The display of arguments must never fail a request.
        text = f"<{type(error).__name__}>"
    return {hd.ARGSREPR: "()", hd.KWARGSREPR: text[:MAX_LENGTH]}
