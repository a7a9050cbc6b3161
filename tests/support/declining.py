"""A task whose exceptions are classes of this module, and of modules that are not imported."""

from __future__ import annotations

import threading

from wbengine import task


class Declined(Exception):
    pass


class Limited(Declined):
    def __init__(self, *, limit: int) -> None:
        super().__init__(f"limit {limit}")


class Locked(Declined):
    def __init__(self, lock: object) -> None:
        super().__init__("locked", lock)

    def __str__(self) -> str:
        return "locked"


#: A class of a module that is not imported.
Foreign = type("Foreign", (Declined,), {"__module__": "tests.support.not_imported"})


@task.task
def charge(kind: str) -> None:
    """Raise an exception of this kind."""
    raise exception(kind)


def exception(kind: str) -> BaseException:
    match kind:
        case "arguments":
            return Declined("no money", 7)
        case "keyword":
            return Limited(limit=3)
        case "unpicklable":
            return Locked(threading.Lock())
        case "foreign":
            return Foreign("no account")
        case "note":
            error = Declined("no money")
            error.add_note("card 1")
            return error
        case "cause":
            error = RuntimeError("payment failed")
            error.__cause__ = Declined("no money")
            return error
        case "group":
            return ExceptionGroup("two cards", [Declined("no money"), Limited(limit=3)])
    raise ValueError(kind)


KINDS = ("arguments", "keyword", "unpicklable", "foreign", "note", "cause", "group")
