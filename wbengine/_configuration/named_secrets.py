"""Secret values that settings name but do not contain."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Secret"]


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """A value in a file or in an environment variable, or the value itself.

    It is read at each use, so that a file that is replaced counts at once.
    """

    path: Path | None = None
    variable: str | None = None
    value: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def parse(
        cls, name: str, settings: Mapping[str, Any], *, may_be_plain: bool = False
    ) -> Secret | None:
        """Return the value of the settings `NAME_file` or `NAME_variable`; None without them.

        :param may_be_plain: whether the setting `NAME` may contain the value.
        :raises ValueError: if there are several of them, or the value cannot be read.
        """
        names = [f"{name}_file", f"{name}_variable", *([name] if may_be_plain else [])]
        given = [each for each in names if settings.get(each) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} exclude each other")
        if not given:
            return None
        text = settings[given[0]]
        if not isinstance(text, str) or not text:
            raise ValueError(f"{given[0]} must be a non-empty string")
        secret = (
            cls(path=Path(text))
            if given[0] == names[0]
            else cls(variable=text)
            if given[0] == names[1]
            else cls(value=text)
        )
        secret.read()
        return secret

    def read(self) -> str:
        """Return the value without surrounding blanks.

        :raises ValueError: if it is missing; the message does not contain the value.
        """
        if self.path is not None:
            try:
                text = self.path.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise ValueError(f"cannot read {str(self.path)!r}: {reason}") from error
            where = f"file {str(self.path)!r}"
        elif self.variable is not None:
            text, where = os.environ.get(self.variable, "").strip(), f"variable ${self.variable}"
        else:
            text, where = str(self.value).strip(), "value"
        if not text:
            raise ValueError(f"{where} is empty or missing")
        return text
