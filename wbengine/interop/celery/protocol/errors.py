"""Failures in the form that Celery keeps them in, and back.

Celery's client makes an exception again of three things: the module, the name and the arguments of
its class.  Where that class is imported at the client it is raised as itself; else as a class of
the same name that `celery.exceptions` seems to define.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from typing import Any, Final

from wbengine import _names, exceptions, limits
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import serializers, showing
from wbengine.types import failure as ft

__all__ = [
    "describe",
    "failure_of",
    "shown",
    "shown_of",
    "told",
    "traceback_of",
]

#: What has a name of its own in Celery -> that name, and its module.
_ALIASES: Final[dict[str, tuple[str, str]]] = {
    _names.dotted(ours): theirs
    for ours, theirs in (
        (exceptions.SoftTimeLimitExceeded, ("SoftTimeLimitExceeded", "billiard.exceptions")),
        (exceptions.TimeLimitExceeded, ("TimeLimitExceeded", "billiard.exceptions")),
        (exceptions.WorkerLost, ("WorkerLostError", "billiard.exceptions")),
        (exceptions.Cancelled, ("TaskRevokedError", "celery.exceptions")),
        (exceptions.Expired, ("TaskRevokedError", "celery.exceptions")),
        (retrying.MaxRetriesExceeded, ("MaxRetriesExceededError", "celery.exceptions")),
        (retrying.Reject, ("Reject", "celery.exceptions")),
        (retrying.Ignore, ("Ignore", "celery.exceptions")),
    )
}
_SOFT: Final = _names.dotted(exceptions.SoftTimeLimitExceeded)
_HARD: Final = _names.dotted(exceptions.TimeLimitExceeded)

#: And back: what a failure that names one of theirs is besides.
_OURS: Final[dict[tuple[str, str], type[BaseException]]] = {
    ("SoftTimeLimitExceeded", "billiard.exceptions"): exceptions.SoftTimeLimitExceeded,
    ("TimeLimitExceeded", "billiard.exceptions"): exceptions.TimeLimitExceeded,
    ("WorkerLostError", "billiard.exceptions"): exceptions.WorkerLost,
    ("Terminated", "billiard.exceptions"): exceptions.Cancelled,
    ("TaskRevokedError", "celery.exceptions"): exceptions.Cancelled,
    ("NotRegistered", "celery.exceptions"): exceptions.NotFound,
    ("MaxRetriesExceededError", "celery.exceptions"): retrying.MaxRetriesExceeded,
}

#: What Celery puts in the place of an exception that cannot be pickled.
_WRAPPER: Final = ("UnpickleableExceptionWrapper", "celery.utils.serialization")

_HEAD: Final = "Traceback (most recent call last):"
_BECAUSE: Final = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)
#: Not every serializer writes integers from here on.
_MOST: Final = 1 << 63
#: So much of one text is told.
_LONGEST: Final = 65536
_SHOWN: Final = 500


def describe(kind: str, module: str, *args: Any) -> dict[str, Any]:
    """What stands for an exception: its class and its arguments."""
    return {"exc_type": kind, "exc_message": list(args), "exc_module": module}


def told(
    failure: ft.Failure, limit: limits.TimeLimit = limits.UNLIMITED, serializer: str = "json"
) -> dict[str, Any]:
    """What Celery's client is told of a failure: `exc_type`, `exc_message` (its arguments) and
    `exc_module`.

    Arguments that the serializer cannot write are told by their `repr`.  What would end the client
    if it were raised there (`SystemExit` and others that are no `Exception`) is told as
    `WorkerLostError`, as when a process of Celery's ends so.
    """
    names = tuple(failure)
    name = names[0] if names else "Exception"
    if name == _SOFT:
        return describe(*_ALIASES[name])
    if name == _HARD:
        seconds = () if limit.hard is None else (limit.hard,)
        return describe(*_ALIASES[name], *(seconds or (_sendable(failure.exception_str),)))
    if "Exception" not in names and names:
        text = f"{name}: {failure.exception_str}" if failure.exception_str else name
        return describe(
            "WorkerLostError",
            "billiard.exceptions",
            f"Worker exited prematurely: {_sendable(text)}",
        )
    kind, module = _ALIASES.get(name) or _class_of(failure, name)
    return describe(kind, module, *(_safe(arg, serializer) for arg in _arguments(failure)))


def traceback_of(failure: ft.Failure) -> str:
    """Where a failure came from, with what was behind it, as Python prints it."""
    parts: list[str] = []
    chain = [*reversed(failure.causes), failure]
    for number, one in enumerate(chain):
        if number:
            error = one.exception
            parts.append(_BECAUSE[error is None or error.__cause__ is None])
        lines = one.traceback_str.rstrip("\n")
        if lines:
            parts.append(f"{_HEAD}\n{lines}\n")
        parts.append(_last_line(one))
    text = _sendable("".join(parts))
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 4]}\n... ({len(text)} characters)\n{text[-_LONGEST // 2 :]}"


def shown(failure: ft.Failure) -> str:
    """The exception as `repr` shows it, for events and logs; never raises."""
    return shown_of(told(failure))


def shown_of(parts: Mapping[str, Any]) -> str:
    """As `shown`, of what `told` returned."""
    kind = parts["exc_type"].rpartition(".")[2]
    arguments = ", ".join(map(_repr, parts["exc_message"]))
    return _short(f"{kind}({arguments})")


def failure_of(meta: Mapping[str, Any]) -> ft.Failure:
    """The failure that a result of Celery's tells of; whatever is in it, there is one.

    Nothing is imported for it.  It names Celery's class, what of its bases is known here, and where
    there is one our own that means the same (`WorkerLost` for `WorkerLostError`).
    """
    value = meta.get("result")
    trace = _lines(meta.get("traceback"))
    if isinstance(value, BaseException):  # only pickle brings one
        found = ft.Failure.from_exception(value)
        return ft.Failure(
            (type(value), found.exception, None),
            exception_str=found.exception_str,
            exc_type_names=tuple(found),
            traceback_str=trace,
            exc_args=found.exception_args,
        )
    if not isinstance(value, Mapping):
        value = {"exc_type": "Exception", "exc_module": "builtins", "exc_message": value}
    kind, module = _word(value.get("exc_type")) or "Exception", _word(value.get("exc_module"))
    message = value.get("exc_message")
    arguments = tuple(message) if isinstance(message, list | tuple) else (message,)
    if message is None:
        arguments = ()
    if (kind, module) == _WRAPPER and len(arguments) >= 3:
        # Where its worker could not pickle it, that tells its class and arguments as arguments.
        kind, module = _word(arguments[1]) or kind, _word(arguments[0])
        inner = arguments[2]
        arguments = tuple(inner) if isinstance(inner, list | tuple) else (inner,)
    return ft.Failure(
        exception_str=_text(arguments),
        exc_type_names=_names_of(kind, module),
        traceback_str=trace,
        exc_args=arguments if all(map(_is_plain, arguments)) else (),
    )


def _class_of(failure: ft.Failure, name: str) -> tuple[str, str]:
    """Name and module of a failure's class."""
    error = failure.exception
    if error is not None:
        cls = type(error)
        module = getattr(cls, "__module__", None)
        return str(getattr(cls, "__qualname__", cls.__name__)), str(module or "builtins")
    parts = name.split(".")
    if len(parts) == 1:
        return name, "builtins"
    # Of a class inside of another one the module is not the part before the last dot.
    length = next(
        (n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in sys.modules), 0
    )
    length = length or len(parts) - 1
    return ".".join(parts[length:]), ".".join(parts[:length])


def _arguments(failure: ft.Failure) -> tuple[Any, ...]:
    if isinstance(failure.exception, exceptions.WbengineException):
        return (failure.exception_str,)
    arguments = failure.exception_args
    if not arguments and failure.exception is None and failure.exception_str:
        return (failure.exception_str,)
    return arguments


def _safe(argument: Any, serializer: str) -> Any:
    if isinstance(argument, str):
        text = _sendable(argument)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if _is_plain(argument) and not (type(argument) is int and abs(argument) >= _MOST):
        return argument
    try:
        serializers.dump(argument, serializer)
        return argument
    except Exception:
        return _repr(argument)


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (str, bool, float, int)


def _repr(value: object) -> str:
    return _sendable(showing.shown(value, _SHOWN, asks=True))


def _sendable(text: str) -> str:
    """Without what not every serializer writes: lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _last_line(failure: ft.Failure) -> str:
    name = next(iter(failure), "Exception")
    if name in _ALIASES:
        parts = told(failure)
        name = f"{parts['exc_module']}.{parts['exc_type']}"
    return f"{name}: {failure.exception_str}\n" if failure.exception_str else f"{name}\n"


def _lines(trace: Any) -> str:
    """A traceback without its first line and the exception behind it, as failures have it."""
    if not isinstance(trace, str):
        return ""
    head, found, rest = trace.rpartition(f"{_HEAD}\n")
    if head or not found:
        return trace[:_LONGEST]  # one with its causes, or what is no traceback
    lines = rest.splitlines()
    while lines and not lines[-1].startswith(" "):
        lines.pop()
    return "\n".join(lines)[:_LONGEST]


def _names_of(kind: str, module: str) -> list[str]:
    """The names of a class and its bases, as far as they are known without importing anything."""
    found: Any = sys.modules.get(module or builtins.__name__)
    for part in kind.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, type) and issubclass(found, Exception):
        names = _bases(found)
    else:
        names = [kind if module in ("", "builtins") else f"{module}.{kind}", "Exception"]
    ours = _OURS.get((kind, module))
    return names if ours is None else [*names[:-1], *_bases(ours)]


def _bases(cls: type[BaseException]) -> list[str]:
    return [_names.dotted(base) for base in cls.__mro__[: cls.__mro__.index(Exception) + 1]]


def _word(value: Any) -> str:
    return value[:_SHOWN] if isinstance(value, str) else ""


def _text(arguments: tuple[Any, ...]) -> str:
    """What `str` makes of an exception with these arguments."""
    if not arguments:
        return ""
    if len(arguments) == 1:
        return arguments[0] if isinstance(arguments[0], str) else _repr(arguments[0])
    return _repr(arguments)
