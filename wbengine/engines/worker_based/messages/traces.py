"""The arguments of a request as its headers show them, for whoever watches a broker."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any, Final

from wbengine.engines.worker_based.messages import envelope as env

#: So much of them is shown.
LONGEST: Final = 200
#: What stands for a value that nobody should see.
MASK: Final = "***"

_PLAIN: Final = (bool, float, type(None))

_SECRET: Final = re.compile("password|token|secret|key", re.IGNORECASE)


class _Repr(reprlib.Repr):
    """Short, whatever a value holds, and without what is called a secret, however deep it is."""

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
        return f"<{type(x).__name__}>"  # its own words might tell a secret


def _hides(key: Any) -> bool:
    return isinstance(key, str) and _SECRET.search(key) is not None


def headers(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers that show the arguments: each value cut, and those masked whose names say that
    they hold a password, token, secret or key.
    """
    try:
        text = _Repr().repr(dict(arguments))
    except Exception as error:  # nobody's arguments are hurt by being shown
        text = f"<{type(error).__name__}>"
    return {env.ARGSREPR: "()", env.KWARGSREPR: text[:LONGEST]}
