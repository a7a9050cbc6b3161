"""Values that may be sent to workers and stored, and how to add types.

In addition to the types of JSON, arguments and results may contain tuples, sets, frozensets, bytes,
complex numbers, `Decimal`, `UUID`, `datetime`, `date`, `time`, `timedelta`, failures, dicts with
keys that are not strings, and, after `allow`, enumerations and dataclasses::

    from wbengine.types import codec

    @codec.allow
    @dataclasses.dataclass(frozen=True)
    class Order:
        number: int
        due: datetime.date

The receiver gets equal values of the same types. Limits: 64 levels of JSON, where a list, or a dict
with strings as keys, is one level, a tuple, set or dataclass two, any other dict three; at most 32
keys of a set or dict with the same hash; at most 100,000 keys that are neither text nor bytes, in
values sent to or from a worker.

All other values are refused before they are sent, with their path. Classes are looked up by name
among the allowed ones, on both sides; a message never causes an import. Call `allow` in the module
that defines the class.
"""

from __future__ import annotations

from wbengine._codec import allow, dumps, loads

__all__ = ["allow", "dumps", "loads"]
