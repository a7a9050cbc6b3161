"""Tags of flows: typed values, and conditions that select flows.

A submission and running tasks set tags. Those of the submission never change: access keys may
depend on them. Equality compares the texts of values, so `amount=17` matches a number and a text.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import terminal_text
from wbengine.types import codec

__all__ = [
    "CHANGED", "CONDITION_SCHEMA", "EVENT", "GIVEN", "KEYS_SCHEMA", "MAX_TAGS", "SCHEMA",
    "CallTags", "Condition", "Indexed", "Latest", "Selection", "Value", "are_same", "check",
    "check_settable", "conditions_of", "given_in", "has_texts", "index_of", "merged", "new_tags",
    "tags_in", "text_of", "texts_of",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: The type of a tag: a text, a finite number, a boolean, or an aware time.
Value = str | int | float | bool | dt.datetime

#: Keys in the `meta` of a flow: tags of its submission, and tags that its run set.
GIVEN: Final = "tags"
CHANGED: Final = "run_tags"

MAX_TAGS: Final = 32
_MAX_KEY_LENGTH: Final = 64
_MAX_VALUE_LENGTH: Final = 256
#: Doubles represent all whole numbers up to this one.
_MAX_WHOLE_NUMBER: Final = 2**53
_KEY: Final = re.compile(r"[A-Za-z0-9._/-]+")

_KEY_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": f"up to {_MAX_KEY_LENGTH} letters, digits and ._/-",
    "pattern": f"^{_KEY.pattern}$",
    "maxLength": _MAX_KEY_LENGTH,
}
_TEXT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": f"1 to {_MAX_VALUE_LENGTH} printable characters without surrounding blanks",
    "pattern": terminal_text.TRIMMED,
    "maxLength": _MAX_VALUE_LENGTH,
}
#: JSON schemas of tags with texts, and of keys of tags.
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "propertyNames": _KEY_SCHEMA,
    "additionalProperties": _TEXT_SCHEMA,
    "maxProperties": MAX_TAGS,
}
KEYS_SCHEMA: Final[Mapping[str, Any]] = {"type": "array", "items": _KEY_SCHEMA}
#: Patterns of numbers and of times in ISO 8601.
_NUMBER: Final = r"-?[0-9]{1,15}(?:[.][0-9]{1,9})?"
_TIME: Final = (
    "[1-9][0-9]{3}-(?:02-(?:0[1-9]|[12][0-9])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01]))"
    "(?:T(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.][0-9]{1,6})?)?"
    "(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])?)?"
)
#: JSON schema of a condition; `Condition.parse` checks it.
CONDITION_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": "a tag such as team=billing or amount>100",
    "pattern": rf"^{_KEY.pattern}(?:={terminal_text.TRIMMED[1:-1]}|[<>]=?(?:{_NUMBER}|{_TIME}))$",
}
_CONDITION: Final = re.compile(r"([^=<>]*)(<=|>=|=|<|>)(.*)", re.DOTALL)

TEXT: Final = "text"
NUMBER: Final = "number"
TIME: Final = "time"
BOOLEAN: Final = "boolean"


def check(tags: object) -> dict[str, Value]:
    """Return valid tags of a flow as a dict. Times are converted to UTC.

    :raises TypeError: if `tags` is not a dict, a key is not a str, or a value has another type.
    :raises ValueError: if there are too many tags, or a key or value is invalid.
    """
    if not isinstance(tags, Mapping) or not all(isinstance(key, str) for key in tags):
        raise TypeError(f"tags must be a dict with keys of type str, got {tags!r:.200}")
    _check_count(len(tags))
    return {_check_key(key): _check_value(key, value) for key, value in tags.items()}


def _check_count(count: int) -> None:
    if count > MAX_TAGS:
        raise ValueError(f"a flow can have at most {MAX_TAGS} tags, got {count}")


def _check_key(key: str) -> str:
    if not _KEY.fullmatch(object_names.check_length("The key of a tag", key, _MAX_KEY_LENGTH)):
        raise ValueError(f"the key of a tag must be {_KEY_SCHEMA['description']}, got {key!r:.80}")
    return str.__str__(key)


def _check_value(key: str, value: object) -> Value:
    if isinstance(value, str):
        return _check_text(key, value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > _MAX_WHOLE_NUMBER:
            raise ValueError(
                f"the value of tag {key} must be a whole number of at most 2**53, or a text"
            )
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"the value of tag {key} must be a finite number, got {value!r}")
        is_whole = value.is_integer() and abs(value) <= _MAX_WHOLE_NUMBER
        return int(value) if is_whole else float(value)
    if isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"the value of tag {key} must be a time with a time zone, got {value!r}"
            )
        try:
            return value.astimezone(dt.UTC)
        except OverflowError:
            raise ValueError(
                f"the value of tag {key} must be a time of the years 1 to 9999 in UTC, got {value}"
            ) from None
    raise TypeError(
        f"the value of tag {key} must be a str, int, float, bool or datetime,"
        f" got {type(value).__name__}"
    )


def _check_text(key: str, value: str) -> str:
    object_names.check_length(f"The value of tag {key}", value, _MAX_VALUE_LENGTH)
    if not terminal_text.is_trimmed(value):
        raise ValueError(
            f"the value of tag {key} must be {_TEXT_SCHEMA['description']}, got {value!r:.80}"
        )
    return str.__str__(value)


def text_of(value: Value) -> str:
    """Return the text of a value: `true` for True, and ISO 8601 in UTC for a time."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value)


def texts_of(tags: Mapping[str, Value]) -> dict[str, str]:
    return {key: text_of(value) for key, value in tags.items()}


def has_texts(tags: Mapping[str, Value], wanted: Mapping[str, str]) -> bool:
    """Return whether the tags contain all wanted ones. Equality compares texts."""
    return all(key in tags and text_of(tags[key]) == text for key, text in wanted.items())


def tags_in(meta: Mapping[str, Any]) -> dict[str, Value]:
    """Return the valid tags in the `meta` of a flow, which may contain the codec's data."""
    return {**_valid(meta.get(CHANGED)), **given_in(meta)}


def given_in(meta: Mapping[str, Any]) -> dict[str, Value]:
    """Return the tags of the submission, which no task can change. Use them for permissions."""
    return _valid(meta.get(GIVEN))


def check_settable(meta: Mapping[str, Any], tags: Iterable[str]) -> None:
    """Check that the run of a flow may set tags with these keys.

    :raises ValueError: if the submission set one of them.
    """
    given = given_in(meta)
    for key in tags:
        if key in given:
            raise ValueError(f"tag {key} was set at the submission and cannot be changed")


def merged(meta: Mapping[str, Any], tags: Mapping[str, Value]) -> dict[str, Value]:
    """Return the tags of a run after it set `tags`, for the key `CHANGED` of `meta`.

    :raises ValueError: if the submission set one of them, or the flow would have too many.
    """
    check_settable(meta, tags)
    given = given_in(meta)
    changed = {**_valid(meta.get(CHANGED)), **tags}
    _check_count(len(given.keys() | changed))
    return changed


def _valid(value: object) -> dict[str, Value]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    valid: dict[str, Value] = {}
    for key, each in pairs:
        if isinstance(each, dict):  # A time in the data of the codec.
            try:
                each = codec.unpack(each)
            except (ValueError, exceptions.InvalidFormat):
                continue
        if isinstance(key, str) and isinstance(each, Value):
            valid[key] = each
    return valid


#: The event of a task that sets tags. Details: `epoch` and `call` of `Latest`, and `tags`: numbers
#: and values by key.
EVENT: Final = "wbengine.tags"


class CallTags:
    """The tags that one call of a task sets.

    Each event contains all of them with their numbers in the order of the changes, so that events
    may be lost, repeated or reordered. `new_tags` returns the new ones.
    """

    def __init__(
        self, events: Callable[[str, dict[str, Any]], None] | None, epoch: int = 1
    ) -> None:
        self._events = events
        self._identity = {"epoch": epoch, "call": secrets.token_hex(8)}
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._tags: dict[str, Value] = {}
        self._count = 0

    def set(self, tags: Mapping[str, Value]) -> None:
        """Set tags and send them.

        :raises TypeError, ValueError: if they are invalid, or the call sets too many.
        """
        checked = check(tags)
        with self._lock:
            _check_count(len(self._tags.keys() | checked))
            for key, value in checked.items():
                self._count += 1
                self._numbers[key], self._tags[key] = self._count, value
            self._send()

    def resend(self) -> None:
        """Send all tags again: another engine may have continued the flow meanwhile."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        numbered = {key: [self._numbers[key], value] for key, value in self._tags.items()}
        if self._events is not None and numbered:
            self._events(EVENT, {**self._identity, "tags": numbered})


class Latest(NamedTuple):
    """The latest change of a tag that an engine received from a call.

    :ivar epoch: number of the copy of the request.
    :ivar call: identifies the execution: a broker may deliver one copy twice.
    :ivar number: number of the change.
    """

    epoch: int = 0
    call: str = ""
    number: int = 0


def new_tags(details: Mapping[str, Any], latest: Latest) -> tuple[dict[str, Value], Latest]:
    """Return the valid tags of an event that are new after `latest`, and their latest change.

    Events of an earlier copy of the request are ignored.
    """
    epoch, call, content = (details.get(key) for key in ("epoch", "call", "tags"))
    if not isinstance(content, Mapping) or type(epoch) is not int or not isinstance(call, str):
        return {}, latest
    if epoch < latest.epoch:
        return {}, latest
    seen = latest.number if (epoch, call) == latest[:2] else 0
    found: list[tuple[int, str, Value]] = []
    for key, pair in content.items():
        try:
            number, value = pair
            if type(number) is int and number > seen:
                found.append((number, *next(iter(check({key: value}).items()))))
        except (TypeError, ValueError) as error:
            LOG.warning("A tag of a task is ignored: %s", error)
    if not found:
        return {}, latest
    found.sort(key=lambda each: each[0])
    return {key: value for _, key, value in found}, Latest(epoch, call, found[-1][0])


def are_same(some: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    """Return whether tags are equal, also in their types: True is not 1."""
    return some == other and all(type(value) is type(other[key]) for key, value in some.items())


class Indexed(NamedTuple):
    """A tag in the index of a store. `number` is a number, or Unix seconds of a time, or None."""

    name: str
    kind: str
    text: str
    number: float | None
    given: bool


def index_of(meta: Mapping[str, Any], *, given: bool) -> list[Indexed]:
    """Return the tags of the run, and with `given` those of the submission, for an index.

    Tags that no condition can match are omitted.
    """
    submitted = given_in(meta)
    changed = {k: v for k, v in _valid(meta.get(CHANGED)).items() if k not in submitted}
    pairs = [(False, changed), *([(True, submitted)] if given else [])]
    indexed: list[Indexed] = []
    for is_given, tags in pairs:
        for key, value in tags.items():
            try:
                checked = _check_value(_check_key(key), value)
            except ValueError:
                continue
            indexed.append(Indexed(key, *_index_value(checked), is_given))
    return indexed


def _index_value(value: Value) -> tuple[str, str, float | None]:
    kind, number = _comparable(value)
    return kind, text_of(value), number


def _comparable(value: Value) -> tuple[str, float | None]:
    if isinstance(value, bool):
        return BOOLEAN, None
    if isinstance(value, int | float):
        return NUMBER, float(value)
    if isinstance(value, dt.datetime):
        return TIME, value.timestamp()
    return TEXT, None


class Condition(NamedTuple):
    """A condition on a tag.

    :ivar operator: `=` compares with `text`; `<`, `<=`, `>`, `>=` compare with `number`.
    :ivar kind: `number` or `time`, for a comparison.
    :ivar given: whether only tags of the submission match.
    """

    key: str
    operator: str
    text: str
    kind: str = TEXT
    number: float = 0.0
    given: bool = False

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition such as `team=billing`, `amount>100` or `due<2026-12-01`.

        :raises ValueError: if it is invalid.
        """
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise ValueError(f"must be a tag such as team=billing or amount>100, got {text!r:.80}")
        key, operator, value = parts.groups()
        _check_key(key)
        if operator == "=":
            return cls(key, operator, _check_text(key, value))
        kind, number = _comparison_value(key, value)
        return cls(key, operator, value, kind, number)

    @classmethod
    def equal(cls, key: str, value: Value, given: bool = False) -> Condition:
        """Return the condition that a tag has a value."""
        return cls(_check_key(key), "=", text_of(_check_value(key, value)), given=given)

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.text}"

    def matches(self, meta: Mapping[str, Any]) -> bool:
        """Return whether a flow with this `meta` matches."""
        tags = given_in(meta) if self.given else tags_in(meta)
        if self.key not in tags:
            return False
        if self.operator == "=":
            return text_of(tags[self.key]) == self.text
        kind, number = _comparable(tags[self.key])
        if kind != self.kind or number is None:
            return False
        below, above = number < self.number, number > self.number
        if self.operator in ("<", ">"):
            return below if self.operator == "<" else above
        return not above if self.operator == "<=" else not below


def _comparison_value(key: str, text: str) -> tuple[str, float]:
    try:
        number = float(text)
        if math.isfinite(number):
            return NUMBER, number
    except ValueError:
        pass
    try:
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return TIME, moment.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"tag {key} must be compared with a number or a time such as 2026-12-01 (UTC),"
            f" got {text!r:.80}"
        ) from None


#: Conditions of a list of flows: values by key, or texts such as `amount>100`.
Selection = Mapping[str, Value] | Iterable[str | Condition]


def conditions_of(tags: Selection | None, given: bool = False) -> tuple[Condition, ...]:
    """Return the conditions for tags by key, or for texts as `Condition.parse` accepts them.

    :raises TypeError: if `tags` is a str.
    :raises ValueError: if a key, a value or a condition is invalid.
    """
    if tags is None:
        return ()
    if isinstance(tags, Mapping):
        return tuple(Condition.equal(key, value, given) for key, value in tags.items())
    if isinstance(tags, str):
        raise TypeError(f"tags must be a dict or a list of conditions, got {tags!r:.80}")
    return tuple(Condition.parse(each) if isinstance(each, str) else each for each in tags)
