"""Values of classes and codecs that are kept as they are encoded, in order to copy them."""

from __future__ import annotations

import collections
import dataclasses
from typing import Final

from wbengine._text import json_text
from wbengine.types._encoding import walk
from wbengine.types._encoding.walk import Parts, Tag


@dataclasses.dataclass(frozen=True, eq=False)
class Undecoded:
    """A value whose class is not used. A set may contain several with the same text.

    :ivar text: the tag of the value as JSON.
    """

    text: str


class Keeper:
    """Keeps values as they are encoded, and counts them.

    :param unknown_only: keep only values of unknown classes and codecs.
    :ivar counts: number of kept values by the name of the class.
    """

    def __init__(self, unknown_only: bool) -> None:
        self.unknown_only: Final = unknown_only
        self.counts: Final = collections.Counter[str]()

    def keep(self, tag: str, parts: Parts) -> Undecoded:
        self.counts[walk.text(parts, "c")] += 1
        return Undecoded(json_text.text_of({walk.TAG: tag, **parts}))


def _write(value: Undecoded, depth_left: int) -> Parts:
    parts: Parts = json_text.parse(value.text)[0]
    return parts  # with the name of the tag


walk.BY_CLASS[Undecoded] = Tag("undecoded", _write, lambda parts, depth_left: None)
