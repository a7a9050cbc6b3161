"""What may travel: the values that reach workers and stores, and how to add types of your own.

Beside JSON's own types, arguments and results may hold tuples, sets, frozensets, bytes, complex
numbers, `Decimal`, `UUID`, `datetime`, `date`, `time`, `timedelta`, failures, dicts with keys that
are no strings, and, once they are allowed, enumerations and dataclasses::

    from wbengine.types import codec

    @codec.allow
    @dataclasses.dataclass(frozen=True)
    class Order:
        number: int
        due: datetime.date

They arrive equal, and of the same type.  They may be nested to 64 levels of JSON: a list, or a
dict whose keys are strings, is one level; a tuple, a set or a dataclass is two; another dict three.
A set or dict holds up to 32 keys with the same hash; one that goes to a worker, or comes from it,
up to 100,000 keys that are neither text nor bytes.
Everything else is refused before it is sent, with its path.  The class is looked up by its name
among the allowed ones, on both sides, and nothing is ever imported because a message says so: allow
it in the module that defines it.
"""

from __future__ import annotations

from wbengine._codec import allow, dumps, loads

__all__ = ["allow", "dumps", "loads"]
