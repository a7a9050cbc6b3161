"""Values that can be sent to workers and stored, and how to add types.

In addition to the types of JSON, arguments and results may contain tuples, sets, frozensets, bytes,
complex numbers, `Decimal`, `UUID`, `datetime`, `date`, `time`, `timedelta`, failures, dicts with
keys that are not strings, and, after `allow`, enumerations and dataclasses::

    from wbengine.types import codec

    @codec.allow
    @dataclasses.dataclass(frozen=True)
    class Order:
        number: int
        due: datetime.date

The receiver gets equal values of the same types. All other values are rejected with their path
before they are sent. Limits: 64 levels of JSON (a list, or a dict with only string keys, is one
level; a tuple, set or dataclass two; any other dict three); 32 keys of a set or dict with the same
hash; 100,000 keys that are neither text nor bytes, in values sent to or from a worker.

Call `allow` in the module that defines the class, so that sender and receiver both allow it. A
message never causes an import.
"""

from __future__ import annotations

from wbengine._codec import allow, dumps, loads

__all__ = ["allow", "dumps", "loads"]
