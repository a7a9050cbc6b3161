"""Output of a command: data on the standard output, everything else on the standard error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine._cli import errors, standard_streams
from wbengine._logs import line_format
from wbengine._text.terminal_text import escaped_json, visible

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Printer", "fitted", "is_seen", "say", "say_on_new_line", "say_lines", "write"]

#: Width for outputs other than terminals: nothing is truncated or wrapped.
_UNLIMITED_WIDTH: Final = 100_000

#: Width to which a column may shrink if its words can be broken.
_MIN_FOLDED_WIDTH: Final = 10

#: A command up to the end of its clause, or a word; with the spaces before it.
_PIECE: Final = re.compile(r" *(?:wbengine [^;]*;?|\S+)")

#: Placeholder that makes the schema the first key.
_SCHEMA: Final[Mapping[str, Any]] = {"schema": ""}


def write(data: str | bytes) -> None:
    """Write data to the standard output and flush it.

    :raises Failed: if the data cannot be written.
    :raises BrokenPipeError: if the reader ended.
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
        standard_streams.forget_output()  # otherwise Python tries to flush again at exit
        raise errors.Failed(
            f"cannot write to the standard output: {errors.reason(error)}"
        ) from error


def say(line: str, *, folded: bool = True) -> None:
    """Write a message to the standard error. Errors of writing are ignored.

    :param folded: on a terminal, break a message that is wider than the terminal.
    """
    text = visible(line)
    _say(fitted(text, sys.stderr) if folded else text)


def say_lines(text: str) -> None:
    """Write lines to the standard error, such as a traceback. Errors of writing are ignored."""
    _say(visible(text, lines=True))


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def say_on_new_line(line: str) -> None:
    """Write a message on a new line, because a terminal shows ^C."""
    text = fitted(visible(line), sys.stderr)
    _say(f"\n{text}" if is_seen(sys.stderr) else text)


def fitted(line: str, stream: Any) -> str:
    """Return the line in rows that fit the terminal of `stream`; unchanged if it is not a terminal.

    It is broken between words. A command (`wbengine ...`) stays in one row, so that it can be
    copied, unless it is wider than the terminal.
    """
    if not is_seen(stream):
        return line
    from rich.cells import cell_len

    with contextlib.suppress(OSError, ValueError):
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns else os.get_terminal_size(stream.fileno()).columns
        if 0 < width < cell_len(line):
            return "\n".join(_rows(line, width, cell_len))
    return line


def _rows(line: str, width: int, cell_len: Callable[[str], int]) -> Iterator[str]:
    row, indentation = "", f"{line[: len(line) - len(line.lstrip())]}  "
    pieces = deque(_PIECE.findall(line))
    while pieces:
        piece = pieces.popleft()
        below = f"{indentation}{piece.lstrip()}"
        if cell_len(f"{row}{piece}") <= width:
            row += piece
        elif " " in piece.strip() and cell_len(below) > width:
            pieces.extendleft(reversed(re.findall(r" *\S+", piece)))
        else:
            if row:
                yield row
            row = below if row else piece
    yield row


def is_seen(stream: Any) -> bool:
    """Return whether the stream is a terminal."""
    try:
        return bool(stream.isatty())
    except ValueError:
        return False


class Printer:
    """Printer of the results and remarks of a command.

    A command passes its results both as JSON and as text; the printer prints the selected form. All
    texts are masked by `mask`, and control characters in them become visible.
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
        self._mask = mask

    # -- data as JSON, on the standard output ------------------------------------------------------

    def document(self, schema: str, content: Mapping[str, Any], *, always: bool = False) -> None:
        """Print a JSON document with the complete result of a command.

        :param schema: the name and version without 'wbengine/', such as 'flow-ls/1'.
        :param always: print it also if text is selected, for results that have no form as text.
        """
        if self.as_json or always:
            write(f"{self._json(schema, content, indent=2)}\n")

    def event(self, schema: str, content: Mapping[str, Any]) -> None:
        """Print one line of JSON Lines and flush it."""
        if self.as_json:
            write(f"{self._json(schema, content)}\n")

    def secret(self, schema: str, content: Mapping[str, Any], name: str) -> None:
        """Print a result with a new secret, `content[name]`: as text, only the secret."""
        if not self.as_json:
            write(f"{content[name]}\n")
            return
        document = {**json.loads(self._json(schema, content)), name: content[name]}
        write(f"{escaped_json(json.dumps(document, ensure_ascii=False, indent=2))}\n")

    # -- data as text, on the standard output ------------------------------------------------------

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        empty: str = "",
        right: Sequence[str] = (),
        folded: Sequence[str] = (),
    ) -> None:
        """Print a table that fits the terminal. Without a terminal, its width is unlimited.

        On a terminal that is too narrow for the words of the cells, each row becomes a paragraph.

        :param rows: the cells; None is printed as a dash.
        :param empty: the remark that replaces a table without rows.
        :param right: columns that are aligned to the right.
        :param folded: columns whose words may be broken.
        """
        if self.as_json:
            return
        rows = [[self._cell(cell) for cell in row] for row in rows]
        if not rows and empty:
            self.hint(empty)
            return
        if not self._is_styled:
            self._plain_table([columns, *rows], [column in right for column in columns])
            return
        from rich import box
        from rich.cells import cell_len
        from rich.measure import Measurement
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD if self.is_terminal else None, pad_edge=False)
        spared = 0
        for number, column in enumerate(columns):
            side = "right" if column in right else "left"
            table.add_column(column, justify=side, overflow="fold")  # type: ignore[arg-type]
            if column in folded:
                words = [word for row in rows for word in row[number].split()]
                spared += max([0, *(cell_len(word) - _MIN_FOLDED_WIDTH for word in words)])
        for row in rows:
            table.add_row(*row)
        if (
            Measurement.get(self.console, self._unlimited_options, table).minimum - spared
            <= self.console.width
        ):
            self.rich(table)
        else:
            for number, row in enumerate(rows):
                if number:
                    self.line("")
                self.pairs(zip(columns, row, strict=True))

    def pairs(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Print names and values, one pair per line."""
        if self.as_json:
            return
        cells = [(name, self._cell(value)) for name, value in rows]
        if not self._is_styled:
            self._plain_table(cells, (False, False))
            return
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for pair in cells:
            table.add_row(*pair)
        self.rich(table)

    def line(self, text: str) -> None:
        """Print a line of data, which is wrapped between words on a terminal."""
        self._text(fitted(visible(self._mask(text)), sys.stdout))

    def lines(self, text: str) -> None:
        """Print several lines of data, such as a traceback."""
        self._text(visible(self._mask(text), lines=True))

    def rich(self, *renderables: Any) -> None:
        """Print renderables of rich, whose texts must already be masked and visible."""
        for renderable in renderables:
            with self.console.capture() as capture:
                self.console.print(renderable)
            lines = capture.get().split("\n")
            self._text("\n".join(line.rstrip(" ") for line in lines).rstrip("\n"))

    # -- other formats -----------------------------------------------------------------------------

    def save(self, data: bytes, path: str | None, *, private: bool = False) -> None:
        """Write data to a file, or to the standard output if `path` is None.

        Secrets must already be masked, and control characters escaped.

        :param private: allow only the owner to read the file.
        :raises Failed: if the data cannot be written.
        """
        if path is None:
            write(data)
            return
        mode = 0o600 if private else 0o666  # reduced by the umask
        try:
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if private:
                    os.fchmod(file.fileno(), mode)  # the file may have existed before
                file.write(data)
        except OSError as error:
            raise errors.Failed(f"cannot write {path}: {errors.reason(error)}") from error
        self.note(f"wrote {path}")

    # -- remarks, on the standard error ------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a remark, unless `quiet` is set."""
        if not self._quiet:
            say(self._mask(text))

    def hint(self, text: str) -> None:
        """Print a remark that is useful only next to a result as text."""
        if not self.as_json:
            self.note(text)

    def hint_lines(self, text: str) -> None:
        """Print a remark of several lines, such as a traceback, next to a result as text."""
        if not (self.as_json or self._quiet):
            say_lines(self._mask(text))

    def guide(self, text: str) -> None:
        """Print a hint about the next step on a terminal, next to a result as text."""
        if is_seen(sys.stderr):
            self.hint(text)

    # -- streams -----------------------------------------------------------------------------------

    @property
    def is_terminal(self) -> bool:
        """Whether the standard output is a terminal."""
        return is_seen(sys.stdout)

    def can_write(self, text: str) -> bool:
        """Return whether the encoding of the standard output supports this text."""
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except (UnicodeError, LookupError):
            return False
        return True

    @cached_property
    def console(self) -> Console:
        """The console of rich for the standard output."""
        return self._console(sys.stdout)

    @cached_property
    def stderr(self) -> Console:
        """The console of rich for the standard error, used for progress."""
        return self._console(sys.stderr)

    @property
    def _is_styled(self) -> bool:
        """Whether output has colours, or must fit a terminal."""
        return self.is_terminal or line_format.wants_colour(self._color, sys.stdout)

    @property
    def _unlimited_options(self) -> Any:
        return self.console.options.update(width=_UNLIMITED_WIDTH)

    def _console(self, stream: Any) -> Console:
        from rich.console import Console

        colour = line_format.wants_colour(self._color, stream)
        on_terminal = is_seen(stream)
        return Console(
            file=stream,
            force_terminal=colour or None,
            no_color=not colour,
            color_system=("auto" if on_terminal else "standard") if colour else None,
            width=None if on_terminal else _UNLIMITED_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )

    # -- helpers -----------------------------------------------------------------------------------

    def _plain_table(self, rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
        """Print rows without colours and borders. The import of rich would be slow."""
        widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            line = ""
            for cell, width, is_right in zip(row, widths, right, strict=True):
                spaces = " " * (width - _width(cell))
                line += f"{spaces}{cell}  " if is_right else f"{cell}{spaces}  "
            lines.append(line.rstrip(" "))
        self._text("\n".join(lines))

    def _cell(self, cell: Any) -> str:
        return "-" if cell is None else visible(self._mask(str(cell)))

    def _json(self, schema: str, content: Mapping[str, Any], indent: int | None = None) -> str:
        document = self._plain({**_SCHEMA, **content, "schema": f"wbengine/{schema}"})
        return escaped_json(json.dumps(document, ensure_ascii=False, indent=indent))

    def _plain(self, content: Any) -> Any:
        """Return a masked value that JSON can represent; infinity and other types become text."""
        if content is None or isinstance(content, bool | int):
            return content
        if isinstance(content, float):
            return content if math.isfinite(content) else str(content)
        if isinstance(content, Mapping):
            return {self._mask(str(key)): self._plain(value) for key, value in content.items()}
        if isinstance(content, list | tuple | set | frozenset):
            return [self._plain(each) for each in content]
        return self._mask(str(content))

    def _text(self, text: str) -> None:
        if not self.as_json:
            write(f"{text}\n")


def _width(text: str) -> int:
    """Return the number of columns of a text on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
