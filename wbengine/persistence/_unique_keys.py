"""Unique keys of submissions: a key belongs to one flow at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import durations, terminal_text
from wbengine.types import codec

__all__ = ["FOREVER", "SCHEMA", "UniqueKey"]

#: JSON schema of the name of a key.
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": f"1 to {object_names.MAX_NAME_LENGTH} printable characters without surrounding"
    " blanks",
    "pattern": terminal_text.TRIMMED,
    "maxLength": object_names.MAX_NAME_LENGTH,
}
#: The duration of a key without an end.
FOREVER: Final = "forever"
_FOREVER_SECONDS: Final = 1e12
#: Length of a digest of the factory, which is followed by a digest of the arguments and inputs.
_FACTORY_LENGTH: Final = 32


class UniqueKey(NamedTuple):
    """A key of a submission.

    :ivar digest: what the submission contains, in 64 hexadecimal digits.
    :ivar seconds: time for which the key outlives the end and the record of its flow; None: it
        ends with the run of the flow, and the contents of later submissions are not compared.
    """

    name: str
    digest: str
    seconds: float | None

    @classmethod
    def of(
        cls,
        name: Any,
        lifetime: str | float | None,
        factory: str,
        args: Iterable[Any] | None,
        kwargs: Mapping[str, Any] | None,
        inputs: Mapping[str, Any],
    ) -> UniqueKey:
        """Create the key of a submission.

        :param lifetime: a duration ('24h', or in seconds), 'forever' or None.
        :raises ValueError: if the name or the lifetime is invalid.
        :raises NotEncodable: if an argument cannot be encoded.
        """
        if not (isinstance(name, str) and terminal_text.is_trimmed(name)):
            raise ValueError(f"unique must be {SCHEMA['description']}, got {name!r:.80}")
        object_names.check_length("unique", name)
        contents = [list(args or ()), dict(kwargs or {}), dict(inputs)]
        text = json.dumps(_without_order(codec.pack(contents, "inputs")), sort_keys=True)
        path = factory.replace(":", ".")  # A function has a name with dots only.
        digest = _digest(path)[:_FACTORY_LENGTH] + _digest(text)[_FACTORY_LENGTH:]
        return cls(name, digest, _seconds(lifetime))

    def check(self, flow_uuid: str, digest: str) -> None:
        """Check that the flow that has this key was submitted with the same contents.

        :param digest: of its contents; "" if they are unknown, because release 0.1 submitted it.
        :raises UniqueKeyConflict: if not.
        """
        if self.seconds is None or digest in ("", self.digest):
            return
        is_factory = digest[:_FACTORY_LENGTH] != self.digest[:_FACTORY_LENGTH]
        raise exceptions.UniqueKeyConflict(
            f"Flow {flow_uuid} was submitted with unique={self.name!r} and"
            f" {'another factory' if is_factory else 'other arguments or inputs'}"
        )


def _without_order(tree: Any) -> Any:
    """Return an encoded value with the pairs of its dicts sorted: equal dicts are equal texts."""
    if isinstance(tree, list):
        return [_without_order(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    parts = {name: _without_order(item) for name, item in tree.items()}
    if parts.get(codec.TAG) == "dict":
        parts["v"].sort(key=lambda pair: json.dumps(pair, sort_keys=True))
    return parts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _seconds(lifetime: str | float | None) -> float | None:
    if lifetime is None:
        return None
    if lifetime == FOREVER:
        return _FOREVER_SECONDS
    is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool)
    seconds = durations.seconds(f"{lifetime:f}" if is_number else str(lifetime))
    if not seconds:
        raise ValueError(
            f"unique_for must be a duration above 0 such as '24h', or {FOREVER!r}, got"
            f" {lifetime!r:.80}"
        )
    return seconds
