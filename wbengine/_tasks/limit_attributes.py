"""Limits of a task or a flow, as its attributes define them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from wbengine._introspection import object_names
from wbengine._security import masking
from wbengine._text import rates

__all__ = [
    "ATTRIBUTES",
    "UNLIMITED",
    "Limit",
    "Quota",
    "check",
    "check_fits",
    "limit_of",
    "shorten",
]

ATTRIBUTES: Final = ("rate_limit", "concurrency", "concurrency_key", "limit", "cost")

#: Longer names end in a digest.
_MAX_NAME_LENGTH: Final = 200


class Quota(NamedTuple):
    """Maximum rate, with `interval` seconds between two starts, and maximum number at a time."""

    rate: str | None = None
    interval: float | None = None
    concurrency: int | None = None

    @property
    def window(self) -> tuple[float, float] | None:
        """The number of units of the rate, and its period in seconds; None: no rate."""
        return None if self.rate is None else rates.parts(self.rate)

    @property
    def label(self) -> str:
        """Text for display: '100/m, 10 at once'."""
        at_once = None if self.concurrency is None else f"{self.concurrency:,} at once"
        return ", ".join(filter(None, (self.rate, at_once)))


UNLIMITED: Final = Quota()


class Limit(NamedTuple):
    """A quota that tasks with the same `name` and the same result of `key` share.

    `key` is called with the arguments that are named in `takes`, and `cost` with those in
    `cost_takes`. A task takes `cost` units of the rate (None: one).
    """

    name: str
    quota: Quota = UNLIMITED
    key: Callable[..., Any] | None = None
    takes: tuple[str, ...] = ()
    cost: Callable[..., Any] | float | None = None
    cost_takes: tuple[str, ...] = ()

    @property
    def needs_arguments(self) -> bool:
        return self.key is not None or callable(self.cost)

    def cost_of(self, arguments: Mapping[str, Any]) -> float:
        """Return the units of the rate that a task with these arguments takes.

        :raises TypeError, ValueError: if the cost is not a finite number of at least 0.
        :raises Exception: if the function of the cost raises it.
        """
        cost = 1.0 if self.cost is None else self.cost
        if callable(cost):
            cost = cost(**{name: arguments[name] for name in self.cost_takes if name in arguments})
        return rates.check_units(f"cost of limit {self.name!r}", cost)

    def id_of(self, arguments: Mapping[str, Any]) -> str:
        """Return the name of the limit that applies to a task with these arguments.

        :raises TypeError: if the key returns a value that cannot identify a limit.
        :raises Exception: if the key raises it.
        """
        if self.key is None:
            return shorten(self.name)
        key_arguments = {name: arguments[name] for name in self.takes if name in arguments}
        value = self.key(**key_arguments)
        if not _is_key(value):
            raise TypeError(
                f"concurrency_key of limit {self.name!r} must return str, int, bool, None or a"
                f" tuple"
                f" of these, got {type(value).__name__}"
            )
        return shorten(f"{self.name}[{_shown_value(value, key_arguments)}]")


def call_key(key: Callable[..., Any], what: str, arguments: Mapping[str, Any]) -> Any:
    """Return the value of a function of some of these arguments, which it takes by name.

    If an argument has a name that looks secret, this is a digest of the value.

    :raises ValueError: if it takes other arguments.
    :raises Exception: if the function raises it.
    """
    names = _argument_names(key, what, arguments)
    key_arguments = {name: arguments[name] for name in names if name in arguments}
    value = key(**key_arguments)
    return None if value is None else _shown_value(value, key_arguments)


def limit_of(owner: Any, what: str, name: str, known: Collection[str] | None) -> Limit:
    """Return the limit of a task or a flow.

    :param what: the task or flow, for error messages.
    :param name: name of the limit, unless the owner defines one.
    :param known: names of possible arguments; None: any.
    :raises TypeError, ValueError: if an attribute is invalid.
    """
    rate, concurrency, shared = owner.rate_limit, owner.concurrency, owner.limit
    key, cost = function_of(owner, "concurrency_key"), function_of(owner, "cost")
    check(what, rate, concurrency, key, shared, cost)
    quota = Quota(rate, None if rate is None else rates.interval(rate), concurrency)
    takes, cost_takes = (
        _argument_names(function, f"{word} of {what}", known) if callable(function) else ()
        for word, function in (("concurrency_key", key), ("cost", cost))
    )
    return Limit(name if shared is None else shared, quota, key, takes, cost, cost_takes)


def check_fits(name: str, cost: float, quota: Quota) -> None:
    """Check that a task with this cost can ever start.

    :raises ValueError: if the cost is above the limit.
    """
    if quota.window is not None and cost > quota.window[0]:
        raise ValueError(
            f"cost of limit {name!r} must be at most the limit of {quota.rate}, got {cost:,.15g}"
        )


def check(what: str, rate: Any, concurrency: Any, key: Any, shared: Any, cost: Any = None) -> None:
    """Check the attributes of a limit.

    :raises TypeError, ValueError: if one is invalid; the message names it.
    """
    if rate is concurrency is None and not (key is shared is None):
        word = "limit" if key is None else "concurrency_key"
        raise ValueError(f"{word} of {what} requires rate_limit or concurrency")
    if rate is not None and (not isinstance(rate, str) or rates.interval(rate) is None):
        raise ValueError(f"rate_limit of {what} must be {rates.DESCRIPTION}, got {rate!r:.80}")
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise ValueError(
            f"concurrency of {what} must be a whole number from 1, got {concurrency!r:.80}"
        )
    if key is not None and not callable(key):
        raise TypeError(
            f"concurrency_key of {what} must be a function of its arguments, got {key!r:.80}"
        )
    if shared is not None and not (isinstance(shared, str) and shared and shared.isprintable()):
        raise ValueError(f"limit of {what} must be a printable str, got {shared!r:.80}")
    object_names.check_length(f"Name of the limit of {what}", shared or "")
    if cost is not None:
        if rate is None:
            raise ValueError(f"cost of {what} requires rate_limit")
        if not callable(cost):
            rates.check_units(f"cost of {what}", cost)


def function_of(owner: Any, name: str) -> Any:
    """Return an attribute that contains a function of arguments.

    A function that a class defines becomes a bound method only if its first parameter is `self`.
    """
    key = inspect.getattr_static(owner, name, None)
    if isinstance(key, staticmethod):
        return key.__func__
    if inspect.isfunction(key) and next(iter(inspect.signature(key).parameters), "") != "self":
        return key
    return getattr(owner, name)


def _argument_names(
    function: Callable[..., Any], what: str, known: Collection[str] | None
) -> tuple[str, ...]:
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise ValueError(f"{what} must accept {parameter.name!r} by name")
        name = parameter.name
        if known is not None and name not in known and parameter.default is parameter.empty:
            raise ValueError(
                f"{what} must take only its arguments, got {name!r}{object_names.hint(name, known)}"
            )
        names.append(name)
    return tuple(names)


def _is_key(value: Any) -> bool:
    """Return True if a value has the same text in every process."""
    if isinstance(value, tuple):
        return all(map(_is_key, value))
    return value is None or isinstance(value, str | int)


def shorten(text: str) -> str:
    """Return a name of a limit or a key in a printable form with a bounded length."""
    text = text.rstrip()  # MySQL ignores blanks at the end of a text.
    if len(text) <= _MAX_NAME_LENGTH and text.isprintable():
        return text
    shown = "".join(filter(str.isprintable, text[: _MAX_NAME_LENGTH - 33]))
    return f"{shown}#{_digest(text)}"


def _shown_value(value: Any, key_arguments: Collection[str]) -> Any:
    """Return the value of a key for a name that is stored and displayed."""
    is_secret = any(map(masking.is_secret_key, key_arguments))
    return f"#{_digest(str(value))}" if is_secret else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
