"""Exceptions of which only a description arrived, raised as what they were.

A failure that came over the wire, or out of a store, has lost its exception.  What is raised in its
place is a `WrappedFailure`, as code written for TaskFlow expects; where that is allowed, it is of
the original's type as well, so that `except ValueError` catches it.

Which types: a description is data, and data must not choose what code is used.  So a name in it
leads only to classes that are imported already, and only to builtins, to errors of this package,
to what the module of the failed task defines, and to what `allow` named.  Nothing is ever imported
here; that loses nothing, for whoever can write `except Refused` has imported `Refused`.

Which not: what is no `Exception` (`SystemExit`, `KeyboardInterrupt`, ...), because what ended a
task elsewhere must not end this process; exception groups, whose members do not travel; and
classes of which no subclass can be made.
"""

from __future__ import annotations

import builtins
import functools
import re
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from wbengine import _names, exceptions

if TYPE_CHECKING:
    from wbengine.types import failure as ft

_A = TypeVar("_A")

_HEAP_TYPE: Final = 1 << 9
#: The attribute in which a `WrappedFailure` keeps its failures.
_FAILURES: Final = "_WrappedFailure__failures"
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

#: What may be raised again, by dotted name: classes, or modules with all that is in and below them.
_allowed: Final[set[str]] = {exceptions.__name__}
#: Classes that were allowed themselves; they may be where no name leads, inside a function.
_classes: Final[dict[str, type[BaseException]]] = {}


def allow(what: _A) -> _A:
    """Let failures that lost their exception raise these types again, in this process.

    `what` is an exception class (so this is a decorator, too), a module, which stands for
    everything it and its submodules define, or the dotted name of either; a name is not imported.
    Returns `what`.  May be called again and from any thread.

    :raises TypeError: it is something else.
    :raises ValueError: it is a string, but no dotted name.
    """
    if isinstance(what, types.ModuleType):
        _allowed.add(what.__name__)
    elif isinstance(what, type) and issubclass(what, BaseException):
        _classes[_names.dotted(what)] = what
    elif not isinstance(what, str):
        raise TypeError(
            f"only exception classes and modules (or their names) can be allowed, not {what!r}"
        )
    elif _DOTTED.fullmatch(what):
        _allowed.add(what)
    else:
        raise ValueError(f"{what!r} is not of the form 'package.module' or 'package.module.Name'")
    return what


def find(name: str, home: str | None) -> type[BaseException] | None:
    """The class that a description calls `name`, if it may be used; `home` is the task's module."""
    found = _classes.get(name)
    if found is not None:
        return found
    parts = name.split(".")
    if len(parts) == 1:
        module: Any = builtins
    else:
        length = next(
            (n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in sys.modules), 0
        )
        place = ".".join(parts[:length])
        if not length or not (place == home or _is_allowed(parts)):
            return None
        module, parts = sys.modules[place], parts[length:]
    thing: Any = module
    for part in parts:
        # Not by getattr(thing, part): modules and metaclasses may run code on being asked.
        thing = getattr(thing, "__dict__", {}).get(part)
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return thing if _names.dotted(thing) == name else None
    return None


def _is_allowed(parts: list[str]) -> bool:
    return any(".".join(parts[:n]) in _allowed for n in range(len(parts), 0, -1))


class RemoteError(exceptions.WrappedFailure):
    """The base of the types that are `WrappedFailure` and the original's type in one.

    The original's own state did not travel.  So none of its code runs, neither when the type is
    made nor when an instance is raised, printed, compared, copied or pickled; only its methods and
    properties, when somebody asks for them, find that attributes are missing.
    """

    #: The original's type.
    original: ClassVar[type[BaseException]]

    def __init_subclass__(cls, **options: Any) -> None:
        pass  # and not on to the original's, which may register, or refuse, its subclasses

    __getattribute__ = BaseException.__getattribute__
    __setattr__ = BaseException.__setattr__
    __delattr__ = BaseException.__delattr__
    __repr__ = BaseException.__repr__
    __eq__ = BaseException.__eq__
    __ne__ = BaseException.__ne__
    __hash__ = BaseException.__hash__
    __format__ = BaseException.__format__
    __dir__ = BaseException.__dir__

    def __bool__(self) -> bool:
        return True

    if not TYPE_CHECKING:  # or every attribute would seem to exist

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{name!r} of the original {_names.dotted(self.original)} is not here: of an"
                " exception only type, message and plain arguments travel"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        extra = {key: value for key, value in self.__dict__.items() if key != _FAILURES}
        return _again, (tuple(self), self.args), extra or None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


def original_of(cls: type[BaseException]) -> type[BaseException] | None:
    """What `cls` was made from, if it is a type of `RemoteError`."""
    return cls.original if issubclass(cls, RemoteError) and cls is not RemoteError else None


@functools.lru_cache(maxsize=1024)
def type_for(original: type[BaseException]) -> type[RemoteError] | None:
    """The type that is a `WrappedFailure` and an `original`, or None where there can be none."""
    if not issubclass(original, Exception) or hasattr(original, "derive"):
        return None
    if original is Exception or issubclass(original, exceptions.WrappedFailure):
        return None  # which it is as a plain one
    namespace = {
        "__module__": exceptions.__name__,
        "__qualname__": f"WrappedFailure[{original.__qualname__}]",
        "__doc__": f"A failure that was a {_names.dotted(original)}.",
        "original": original,
    }
    try:
        # Past what a metaclass of the original's does when classes are made.
        made = type.__new__(type(original), "WrappedFailure", (RemoteError, original), namespace)
    except Exception:
        return None
    return cast(type[RemoteError], made)


def remote_error(failure: ft.Failure) -> exceptions.WrappedFailure:
    """A new exception for `failure`, whose causes are behind it; plain if it must be."""
    error = _one(failure)
    if isinstance(error, RemoteError):
        last: BaseException = error
        for cause in failure.causes:
            last.__cause__ = following = _one(cause)
            last = following
    return error


def _one(failure: ft.Failure) -> exceptions.WrappedFailure:
    kind = _type_of(failure)
    message = failure.exception_str
    args = failure.exception_args or ((message,) if message else ())
    made = None if kind is None else _made(kind, args)
    if made is None:
        return exceptions.WrappedFailure([failure])
    exceptions.WrappedFailure.__init__(made, [failure])
    if isinstance(made, SyntaxError) and made.msg is None:
        made.msg = message  # else printing it would say that there is no detail
    made.args = args
    return made


def _type_of(failure: ft.Failure) -> type[RemoteError] | None:
    name = next(iter(failure), None)
    original = find(name, failure.home) if isinstance(name, str) else None
    try:
        return None if original is None else type_for(original)  # type: ignore[arg-type]
    except Exception:  # a metaclass may even make classes that cannot be hashed
        return None


def _made(kind: type[RemoteError], args: tuple[Any, ...]) -> RemoteError | None:
    """An instance that knows what a builtin original makes of its arguments (`errno`, `value`)."""
    base: Any = next(cls for cls in kind.__mro__ if not cls.__flags__ & _HEAP_TYPE)
    if issubclass(base, SyntaxError):
        args = args[:1]  # printing believes the others, whatever they are
    for given in (args, ()):
        try:
            made: Any = base.__new__(kind, *given)
        except Exception:
            continue
        try:
            base.__init__(made, *given)
        except Exception:
            pass
        return made if type(made) is kind else None
    return None


def _again(failures: Iterable[Any], args: tuple[Any, ...]) -> exceptions.WrappedFailure:
    """Unpickle: in another process other types may be allowed, or none."""
    several = list(failures)
    error = remote_error(several[0]) if len(several) == 1 else exceptions.WrappedFailure(several)
    if isinstance(error, RemoteError):
        error.args = args
    return error
