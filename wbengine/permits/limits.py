"""What limits a task or a flow, as that says of itself."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from wbengine import _names, _secrets

__all__ = ["ATTRIBUTES", "UNLIMITED", "Limit", "Quota", "check", "limit_of"]

#: What a task or a flow has that says how it is limited.
ATTRIBUTES: Final = ("rate_limit", "concurrency", "concurrency_key", "limit")

_SECONDS: Final[Mapping[str, float]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE: Final = re.compile(r"([1-9][0-9]{0,8})/([smhd])")
#: Characters of the name of what is counted; those of a longer one end in a digest.
_LONGEST: Final = 200


class Quota(NamedTuple):
    """How often something may begin, and how many of it may be under way at once.

    `interval`: seconds between two beginnings, on the average.
    """

    rate: str | None = None
    interval: float | None = None
    concurrency: int | None = None

    @property
    def label(self) -> str:
        """It in words: '100/m, 10 at once'."""
        at_once = None if self.concurrency is None else f"{self.concurrency:,} at once"
        return ", ".join(filter(None, (self.rate, at_once)))


UNLIMITED: Final = Quota()


class Limit(NamedTuple):
    """The quota of all that is called `name`, and for which `key` returns the same.

    The key is given those of the arguments that `takes` names.
    """

    name: str
    quota: Quota = UNLIMITED
    key: Callable[..., Any] | None = None
    takes: tuple[str, ...] = ()

    def id_of(self, arguments: Mapping[str, Any]) -> str:
        """What is counted together with what has these arguments.

        :raises TypeError: what the key returned is nothing to count by.
        :raises Exception: whatever the key raises.
        """
        if self.key is None:
            return _short(self.name)
        given = {name: arguments[name] for name in self.takes if name in arguments}
        found = self.key(**given)
        if not _is_key(found):
            raise TypeError(
                f"The concurrency_key of limit {self.name!r} returned a {type(found).__name__}: it"
                " is a text, a whole number, a bool, None, or a tuple of these"
            )
        if any(map(_secrets.is_secret_key, given)):
            found = f"#{_digest(str(found))}"  # names of limits are kept, and shown
        return _short(f"{self.name}[{found}]")


def limit_of(owner: Any, what: str, name: str, known: Collection[str] | None) -> Limit:
    """What limits a task or a flow; `what` it is, in errors.

    :param name: of the limit, unless the owner has one for it.
    :param known: the arguments it may have; None: any.
    :raises TypeError, ValueError: what it says makes no sense.
    """
    rate, concurrency, shared = owner.rate_limit, owner.concurrency, owner.limit
    key = _key_of(owner)
    check(what, rate, concurrency, key, shared)
    quota = Quota(rate, None if rate is None else _interval(rate), concurrency)
    takes = () if key is None else _taken(key, what, known)
    return Limit(name if shared is None else shared, quota, key, takes)


def check(what: str, rate: Any, concurrency: Any, key: Any, shared: Any) -> None:
    """Refuse what makes no sense.

    :raises TypeError, ValueError: the text names it.
    """
    if rate is concurrency is None and not (key is shared is None):
        word = "limit" if key is None else "concurrency_key"
        raise ValueError(
            f"The {word} of {what} limits nothing: it has neither rate_limit nor concurrency"
        )
    if rate is not None and (not isinstance(rate, str) or not _RATE.fullmatch(rate)):
        raise ValueError(
            f"The rate_limit of {what} is a number from 1 per s, m, h or d, such as '100/m', not"
            f" {rate!r:.80}"
        )
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise ValueError(
            f"The concurrency of {what} is a whole number from 1, not {concurrency!r:.80}"
        )
    if key is not None and not callable(key):
        raise TypeError(
            f"The concurrency_key of {what} is a function of its arguments, not {key!r:.80}"
        )
    if shared is not None and not (isinstance(shared, str) and shared and shared.isprintable()):
        raise ValueError(f"The limit of {what} is named by a text, not by {shared!r:.80}")


def _key_of(owner: Any) -> Any:
    """The key as it was written: a function in a class is no method, unless it takes `self`."""
    found = inspect.getattr_static(owner, "concurrency_key", None)
    if isinstance(found, staticmethod):
        return found.__func__
    if inspect.isfunction(found) and next(iter(inspect.signature(found).parameters), "") != "self":
        return found
    return owner.concurrency_key


def _interval(rate: str) -> float:
    many, unit = rate.split("/")
    return _SECONDS[unit] / int(many)


def _taken(key: Callable[..., Any], what: str, known: Collection[str] | None) -> tuple[str, ...]:
    """The names of the arguments that a key is given."""
    found = []
    for parameter in inspect.signature(key).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise ValueError(f"The concurrency_key of {what} takes {parameter.name!r} by position")
        name = parameter.name
        if known is not None and name not in known and parameter.default is parameter.empty:
            raise ValueError(
                f"The concurrency_key of {what} takes {name!r}, which is none of its arguments"
                f"{_names.hint(name, known)}"
            )
        found.append(name)
    return tuple(found)


def _is_key(found: Any) -> bool:
    """Whether it is the same for what is the same, in every process."""
    if isinstance(found, tuple):
        return all(map(_is_key, found))
    return found is None or isinstance(found, str | int)


def _short(text: str) -> str:
    """A text as every store can keep it."""
    if len(text) <= _LONGEST and text.isprintable():
        return text
    shown = "".join(filter(str.isprintable, text[: _LONGEST - 33]))
    return f"{shown}#{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
