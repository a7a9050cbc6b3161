"""What a command says: data on the standard output, all else on the standard error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import _log_lines, _streams
from wbengine._terminal import escaped_json, visible
from wbengine.cli import errors

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Printer", "is_seen", "say", "say_behind_ctrl_c", "write"]

#: Columns where nobody looks: nothing is cut off, or folded.
_ENDLESS: Final = 100_000

#: It comes first, whatever else the content says of it.
_SCHEMA: Final[Mapping[str, Any]] = {"schema": ""}


def write(data: str | bytes) -> None:
    """Data, on the standard output; it is out when this returns.

    :raises Failed: it cannot be written; who reads it having left is a `BrokenPipeError`.
    """
    try:
        if isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _streams.forget_output()  # or Python tries it once more when it ends
        raise errors.Failed(
            f"the standard output cannot be written: {errors.reason(error)}"
        ) from error


def say(line: str) -> None:
    """A line that must be said, on the standard error; if that cannot be, it ends nothing."""
    _say(visible(line))


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def say_behind_ctrl_c(line: str) -> None:
    """As `say`, on a line of its own: a terminal shows the ^C."""
    _say(f"\n{visible(line)}" if is_seen(sys.stderr) else visible(line))


def is_seen(stream: Any) -> bool:
    """Whether somebody looks at it: it is a terminal."""
    try:
        return bool(stream.isatty())
    except ValueError:  # closed
        return False


class Printer:
    """Prints what a command has found, and remarks.

    A command tells it both as JSON and as text: what is wanted of these is printed.  All texts that
    are printed go through `mask`, and control characters in them become visible.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        color: str = "auto",
        quiet: bool = False,
        mask: Callable[[str], str] = str,
    ) -> None:
        self.as_json = as_json
        self._color = color
        self._quiet = quiet
        self._masked = mask

    # -- data, as JSON, on the standard output -----------------------------------------------------

    def document(self, schema: str, content: Mapping[str, Any], *, always: bool = False) -> None:
        """One JSON document, the whole answer of a command: `{"schema": "wbengine/flow-ls/1", ..}`.

        `schema` is its name without 'wbengine/' and with the version: 'flow-ls/1'.  It is printed
        `always` where there is no answer as text.
        """
        if self.as_json or always:
            write(f"{self._json(schema, content, indent=2)}\n")

    def event(self, schema: str, content: Mapping[str, Any]) -> None:
        """One line of JSON of many (JSON Lines); it is out when this returns."""
        if self.as_json:
            write(f"{self._json(schema, content)}\n")

    # -- the same as text --------------------------------------------------------------------------

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        empty: str = "",
        right: Sequence[str] = (),
    ) -> None:
        """A table: as wide as it must be where nobody looks, folded to fit on a terminal; on one
        that is too narrow for its words, a paragraph for each row.

        Cells are texts (None: a dash), or what rich renders.  Without rows `empty` is said instead,
        as a remark.
        """
        if self.as_json:
            return
        from rich import box
        from rich.measure import Measurement
        from rich.table import Table

        rows = list(rows)
        table = Table(box=box.SIMPLE_HEAD if self.is_terminal else None, pad_edge=False)
        for column in columns:
            side = "right" if column in right else "left"
            table.add_column(column, justify=side, overflow="fold")  # type: ignore[arg-type]
        for row in rows:
            table.add_row(*(self._cell(cell) for cell in row))
        if not rows and empty:
            self.hint(empty)
        elif Measurement.get(self.console, self._endless, table).minimum <= self.console.width:
            self.rich(table)
        else:
            for number, row in enumerate(rows):
                if number:
                    self.line("")
                self.pairs(zip(columns, row, strict=True))

    def pairs(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Names with their values, one below the other."""
        if self.as_json:
            return
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, self._cell(value))
        self.rich(table)

    def line(self, text: str) -> None:
        """A line of data."""
        self._text(visible(self._masked(text)))

    def lines(self, text: str) -> None:
        """Data of several lines, such as a traceback."""
        self._text(visible(self._masked(text), lines=True))

    def rich(self, *renderables: Any) -> None:
        """What rich renders.  Its texts must have gone through the redactor, and be visible."""
        for one in renderables:
            with self.console.capture() as capture:
                self.console.print(one)
            lines = capture.get().split("\n")
            self._text("\n".join(line.rstrip(" ") for line in lines).rstrip("\n"))

    # -- in a form of its own ----------------------------------------------------------------------

    def save(self, data: bytes, path: str | None, *, private: bool = False) -> None:
        """Write data into a file, for its owner only if it is `private`; without a path, on the
        standard output.  Its secrets are masked, and its control characters escaped, already.

        :raises Failed: it cannot be written.
        """
        if path is None:
            write(data)
            return
        mode = 0o600 if private else 0o666  # less what the umask takes away
        try:
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if private:
                    os.fchmod(file.fileno(), mode)  # it may have been there
                file.write(data)
        except OSError as error:
            raise errors.Failed(f"{path} cannot be written: {errors.reason(error)}") from error
        self.note(f"written: {path}")

    # -- remarks, on the standard error ------------------------------------------------------------

    def note(self, text: str) -> None:
        """A remark, unless nobody wants any."""
        if not self._quiet:
            say(self._masked(text))

    def hint(self, text: str) -> None:
        """A remark for who reads the answer as text."""
        if not self.as_json:
            self.note(text)

    # -- where it goes -----------------------------------------------------------------------------

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at the standard output."""
        return is_seen(sys.stdout)

    def can_write(self, text: str) -> bool:
        """Whether the standard output has an encoding for that."""
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except (UnicodeError, LookupError):
            return False
        return True

    @cached_property
    def console(self) -> Console:
        """The standard output, for rich."""
        return self._console(sys.stdout)

    @cached_property
    def stderr(self) -> Console:
        """The standard error, for rich: progress."""
        return self._console(sys.stderr)

    @property
    def _endless(self) -> Any:
        """As wide as it may be."""
        return self.console.options.update(width=_ENDLESS)

    def _console(self, stream: Any) -> Console:
        from rich.console import Console

        colour = _log_lines.wants_colour(self._color, stream)
        seen = is_seen(stream)
        return Console(
            file=stream,
            force_terminal=colour or None,
            no_color=not colour,
            color_system=("auto" if seen else "standard") if colour else None,
            width=None if seen else _ENDLESS,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )

    # -- how --------------------------------------------------------------------------------------

    def _cell(self, cell: Any) -> Any:
        if cell is None:
            return "-"
        return cell if _renders(cell) else visible(self._masked(str(cell)))

    def _json(self, schema: str, content: Mapping[str, Any], indent: int | None = None) -> str:
        whole = self._plain({**_SCHEMA, **content, "schema": f"wbengine/{schema}"})
        return escaped_json(json.dumps(whole, ensure_ascii=False, indent=indent))

    def _plain(self, content: Any) -> Any:
        """What JSON has a form for, masked: numbers that are none, and all else, as texts."""
        if content is None or isinstance(content, bool | int):
            return content
        if isinstance(content, float):
            return content if math.isfinite(content) else str(content)
        if isinstance(content, Mapping):
            return {self._masked(str(key)): self._plain(value) for key, value in content.items()}
        if isinstance(content, list | tuple | set | frozenset):
            return [self._plain(each) for each in content]
        return self._masked(str(content))

    def _text(self, text: str) -> None:
        if not self.as_json:
            write(f"{text}\n")


def _renders(cell: Any) -> bool:
    return hasattr(cell, "__rich_console__") or hasattr(cell, "__rich__")
