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
from typing import Any, Final, NamedTuple, cast

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import terminal_text
from wbengine.types import codec

__all__ = [
    "CHANGED", "EVENT", "GIVEN", "KEY", "KEY_FORM", "MAX_KEY_LENGTH", "MAX_TAGS",
    "MAX_TEXT_LENGTH", "MAX_WHOLE_NUMBER", "TEXT_FORM", "CallTags", "Condition", "Indexed",
    "Latest", "Selection", "Value", "are_same", "check", "check_key", "check_number",
    "check_settable", "check_types", "check_value", "conditions_of", "given_in", "has_texts",
    "index_of", "merged", "new_tags", "number_or_time", "tags_in", "text_of", "texts_of",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: The type of a tag: a text, a finite number, a boolean, or an aware time.
Value = str | int | float | bool | dt.datetime

#: Keys in the `meta` of a flow: tags of its submission, and tags that its run set.
GIVEN: Final = "tags"
#: Name of the parent of a child flow in the index of tags, and its key in `meta`. It is no tag.
PARENT: Final = "\x1fparent"
_PARENT_NOTE: Final = "parent"
#: Name of the original flow of a fork that owns its results, as `PARENT`.
OWNED: Final = "\x1fowned"
_FORK_NOTE: Final = "forked_from"
CHANGED: Final = "run_tags"

MAX_TAGS: Final = 32
MAX_KEY_LENGTH: Final = 64
MAX_TEXT_LENGTH: Final = 256
#: Doubles represent all whole numbers up to this one.
MAX_WHOLE_NUMBER: Final = 2**53
KEY: Final = re.compile(r"[A-Za-z0-9._/-]+")

#: What keys and texts are, for messages.
KEY_FORM: Final = f"up to {MAX_KEY_LENGTH} letters, digits and ._/-"
TEXT_FORM: Final = f"1 to {MAX_TEXT_LENGTH} printable characters without surrounding blanks"
#: Numbers of JSON.
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_NUMBER: Final = re.compile(rf"{_WHOLE.pattern}(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
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
    return {check_key(key): check_value(key, value) for key, value in tags.items()}


def _check_count(count: int) -> None:
    if count > MAX_TAGS:
        raise ValueError(f"a flow can have at most {MAX_TAGS} tags, got {count}")


def check_key(key: str) -> str:
    if not KEY.fullmatch(object_names.check_length("The key of a tag", key, MAX_KEY_LENGTH)):
        raise ValueError(f"the key of a tag must be {KEY_FORM}, got {key!r:.80}")
    return str.__str__(key)


def check_value(key: str, value: object) -> Value:
    if isinstance(value, str):
        return _check_text(key, value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return check_number(key, value)
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


def check_number(key: str, value: float) -> float:
    """Return the number of a tag, as an int if it is whole.

    :raises ValueError: if it is not finite, or is a whole number that a double may not represent.
    """
    if isinstance(value, int):
        if abs(value) > MAX_WHOLE_NUMBER:
            raise ValueError(
                f"the value of tag {key} must be a whole number of at most 2**53, or a text"
            )
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"the value of tag {key} must be a finite number, got {value!r}")
    is_whole = value.is_integer() and abs(value) <= MAX_WHOLE_NUMBER
    return int(value) if is_whole else float(value)


def _check_text(key: str, value: str) -> str:
    object_names.check_length(f"The value of tag {key}", value, MAX_TEXT_LENGTH)
    if not terminal_text.is_trimmed(value):
        raise ValueError(f"the value of tag {key} must be {TEXT_FORM}, got {value!r:.80}")
    return str.__str__(value)


def check_types(meta: Mapping[str, Any], tags: Mapping[str, Value]) -> None:
    """Check that texts do not replace tags of another type, which comparisons would find no more.

    :raises ValueError: if one does.
    """
    present = tags_in(meta)
    for key, value in tags.items():
        kind = _comparable(present[key])[0] if key in present else TEXT
        if isinstance(value, str) and kind != TEXT:
            raise ValueError(
                f"tag {key} is a {kind}, and {value!r:.80} is a text: remove the tag first, or set"
                f" a {kind} (on the command line {key}:={value:.80})"
            )


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
                checked = check_value(check_key(key), value)
            except ValueError:
                continue
            indexed.append(Indexed(key, *_index_value(checked), is_given))
    flows = {PARENT: parent_in(meta), OWNED: _original_in(meta)} if given else {}
    indexed += [
        Indexed(name, TEXT, flow, None, True) for name, flow in flows.items() if flow is not None
    ]
    return indexed


def parent_in(meta: Mapping[str, Any]) -> str | None:
    """Return the uuid of the parent in the `meta` of a flow, or None."""
    return _flow_in(meta.get(_PARENT_NOTE))


def _original_in(meta: Mapping[str, Any]) -> str | None:
    note = meta.get(_FORK_NOTE)
    return _flow_in(note) if isinstance(note, Mapping) and note.get("own") is True else None


def _flow_in(note: object) -> str | None:
    flow = note.get("flow") if isinstance(note, Mapping) else None
    return flow if isinstance(flow, str) and len(flow) <= MAX_TEXT_LENGTH else None


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
        check_key(key)
        if operator == "=":
            return cls(key, operator, _check_text(key, value))
        kind, number = _comparable(number_or_time(key, value))
        return cls(key, operator, value, kind, cast(float, number))

    @classmethod
    def equal(cls, key: str, value: Value, given: bool = False) -> Condition:
        """Return the condition that a tag has a value."""
        return cls(check_key(key), "=", text_of(check_value(key, value)), given=given)

    @classmethod
    def child_of(cls, flow_uuid: str) -> Condition:
        """Return the condition that a flow is a child of another one."""
        return cls(PARENT, "=", flow_uuid)

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.text}"

    def matches(self, meta: Mapping[str, Any]) -> bool:
        """Return whether a flow with this `meta` matches."""
        if self.key == PARENT:
            return parent_in(meta) == self.text
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


def number_or_time(key: str, text: str) -> float | dt.datetime:
    """Return the number or the time (UTC by default) in a text.

    :raises ValueError: if it is neither.
    """
    if _WHOLE.fullmatch(text):
        return check_number(key, int(text))
    if _NUMBER.fullmatch(text):
        return check_number(key, float(text))
    try:
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"tag {key} requires a number or a time such as 2026-12-01 (UTC), got {text!r:.80}"
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
