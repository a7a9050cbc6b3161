"""The code blocks of a documentation page: found, run in order, and compared with the shown output.

A page may contain `.. code-block::` of these languages:

- `python`: all blocks of a page run in one interpreter and one new folder, as one program. A block
  with a `:caption:` is a module, written to the file of that name; `page_scripts` also runs it as a
  program.
- `console`: a shell in that folder runs the lines that start with `$ `; the other lines are their
  output. A command that ends in `&` runs in the background until the end of the page.
- `output`: the output of the block before it; `...` matches any text. An error is shown as its
  traceback, with `...` for the frames. A block without an output block prints nothing.
- `text`: a picture or a table, not run. With a `:caption:`, it is the content of a configuration
  file, which `tests/acceptance/test_configurations.py` loads.

Other languages are errors, because a block that is not run could be wrong. In Markdown the same
languages follow the fence, and a module has its file name behind them: "```python orders.py".
"""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from pathlib import Path
from typing import Any

LANGUAGES = ("python", "console", "output", "text")
#: Port of servers in blocks of pages, which tests replace by a free one.
PORT = "8585"
_DIRECTIVE = re.compile(r"( *)\.\. (code-block|code|sourcecode|doctest|testcode)::(.*)")
_FENCE = re.compile(r" *(?:```|~~~)(.*)")


class BlockError(Exception):
    """A page contains text that looks like code and would not be run."""


@dataclasses.dataclass
class Block:
    """One block with its position and its expected output."""

    language: str
    line: int
    text: str
    caption: str = ""
    expected: str = ""


def blocks(page: Path) -> list[Block]:
    """Return the blocks of `page` that are run, in order, each with its expected output.

    :raises BlockError: if the page has a block of another kind.
    """
    return [block for block in _all_blocks(page) if block.language != "text"]


def configurations(page: Path) -> list[Block]:
    """Return the configuration files of `page`; the caption of each is its name."""
    return [block for block in _all_blocks(page) if block.language == "text" and block.caption]


def _all_blocks(page: Path) -> list[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    if page.suffix == ".md":
        return _fenced(page.name, lines)
    page_blocks: list[Block] = []
    inside = 0  # last line of the latest block
    for number, line in enumerate(lines, 1):
        where = f"{page.name}:{number}"
        if number <= inside:
            continue
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            if line.lstrip().startswith(">>>"):
                raise BlockError(f"{where}: an interpreter session; use python and output blocks")
            if line.rstrip().endswith("::") and not line.lstrip().startswith(".. "):
                raise BlockError(f"{where}: a literal block; say with code-block what it is")
            continue
        indent, directive, language = match[1], match[2], match[3].strip()
        if directive != "code-block" or language not in LANGUAGES:
            raise BlockError(f"{where}: {language or directive} is none of {', '.join(LANGUAGES)}")
        block, inside = _read(lines, number, len(indent), language)
        if language == "output":
            latest = page_blocks[-1] if page_blocks else block
            if latest.language in ("text", "output") or _between(lines, latest, number):
                raise BlockError(f"{where}: this output does not follow a block that is run")
            latest.expected = block.text
        else:
            page_blocks.append(block)
    return page_blocks


def _fenced(name: str, lines: list[str]) -> list[Block]:
    """Return the blocks of a page in Markdown."""
    found: list[Block] = []
    adjoins = False  # whether only blank lines follow the latest block
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        where = f"{name}:{number}"
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if line.startswith("    ") and not lines[number - 2].strip():
                raise BlockError(f"{where}: an indented block; use a fence that says what it is")
            adjoins = adjoins and not line.strip()
            continue
        language, _, caption = fence[1].strip().partition(" ")
        if language not in LANGUAGES:
            raise BlockError(f"{where}: {language or 'a fence'} is none of {', '.join(LANGUAGES)}")
        inside = itertools.takewhile(lambda one: _FENCE.fullmatch(one[1]) is None, numbered)
        text = textwrap.dedent("\n".join(line for _, line in inside)) + "\n"
        if language == "output":
            if not adjoins:
                raise BlockError(f"{where}: this output does not follow a block that is run")
            found[-1].expected = text
        else:
            found.append(Block(language, number + 1, text, caption))
        adjoins = language in ("python", "console")
    return found


def broker(page: Path) -> str | None:
    """Return the kind of broker for `$WBENGINE_URL` in the blocks of `page`.

    A comment `.. broker: redis` selects it.
    """
    return _server(page, "broker")


def store(page: Path) -> str | None:
    """Return the kind of store for `$WBENGINE_PERSISTENCE`, likewise: `.. store: postgresql`."""
    return _server(page, "store")


def _server(page: Path, role: str) -> str | None:
    text = page.read_text(encoding="utf-8")
    match = re.search(rf"^\.\. {role}: (\w+)$", text, re.MULTILINE)
    return match[1] if match else None


def _read(lines: list[str], number: int, indent: int, language: str) -> tuple[Block, int]:
    end = number
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent):
        end += 1
    caption = ""
    first = number
    while first < end and (option := re.fullmatch(r" *:(\w+): *(.*)", lines[first])):
        caption = option[2] if option[1] == "caption" else caption
        first += 1
    body = textwrap.dedent("\n".join(lines[first:end])).strip("\n") + "\n"
    offset = next((n for n in range(first, end) if lines[n].strip()), first)
    return Block(language, offset + 1, body, caption), end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _between(lines: list[str], block: Block, number: int) -> str:
    """Return the text between a block and the directive at `number`, which must be empty."""
    end = block.line - 1 + len(block.text.splitlines())
    return "".join(lines[end : number - 1]).strip()


def run_blocks(
    found: list[Block],
    folder: Path,
    environment: dict[str, str],
    interpreter: Path | None = None,
) -> list[str]:
    """Run the blocks of one page in one process, and return the output of each.

    The process starts from the fork server, or is a new interpreter.
    """
    from tests.support import python  # this file also runs where there are no tests

    words = ["-W", "error", __file__]
    options: dict[str, Any] = {
        "cwd": folder,
        "env": {**environment, "PYTHONUNBUFFERED": "1"},
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    with (
        python.start(words, **options)
        if interpreter is None
        else subprocess.Popen([interpreter, *words], **options)
    ) as page:
        try:
            sent = json.dumps([dataclasses.asdict(block) for block in found])
            out, err = page.communicate(sent, timeout=280)
        except BaseException:  # the workers of the page end with it
            os.killpg(page.pid, signal.SIGKILL)
            raise
    assert (page.returncode, err) == (0, ""), err
    data: list[str] = json.loads(out)
    return data


def compare(page: Path, found: list[Block], told: list[str]) -> None:
    """Fail if the output of a block of `page` differs from the shown output."""
    for block, printed in zip(found, told, strict=True):
        expected = block.expected
        if block.language == "console":
            lines = block.text.splitlines()
            expected = "".join(line + "\n" for line in lines if not line.startswith("$ "))
        printed = re.sub(" +$", "", printed, flags=re.MULTILINE)
        same = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
        assert same, f"{page.name}:{block.line} prints\n{printed}\nand not\n{expected}"


# The interpreter of a page. ----------------------------------------------------------------------


class _Interpreter:
    """Runs the blocks of a page.

    Its module `__main__` has a file with all Python blocks so far, because child processes of
    `multiprocessing` run that file, as they do when a reader saves the blocks as one program.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        main = types.ModuleType("__main__")
        main.__file__ = str(program)
        sys.modules["__main__"] = main
        self.names = vars(main)
        self.background: list[subprocess.Popen[bytes]] = []
        sys.path[0] = os.getcwd()
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]

    def run(self, block: dict[str, Any]) -> str:
        """Run one block. Return its output, including output of child processes to file
        descriptors.
        """
        sys.stdout.flush()
        terminal = os.dup(1)
        with tempfile.TemporaryFile() as captured:
            os.dup2(captured.fileno(), 1)
            try:
                self._perform(block)
            finally:
                sys.stdout.flush()
                os.dup2(terminal, 1)
                os.close(terminal)
            captured.seek(0)
            return captured.read().decode()

    def _perform(self, block: dict[str, Any]) -> None:
        if block["caption"]:
            Path(block["caption"]).write_text(block["text"], encoding="utf-8")
        elif block["language"] == "console":
            for line in block["text"].splitlines():
                if line.startswith("$ "):
                    self._shell(line[2:])
        else:
            with self._program.open("a", encoding="utf-8") as program:
                program.write(block["text"])
            try:
                exec(compile(block["text"], f"line {block['line']}", "exec"), self.names)
            except Exception as error:
                print("Traceback (most recent call last):\n  ...")
                print("".join(traceback.format_exception_only(type(error), error)), end="")

    def _shell(self, command: str) -> None:
        if command.endswith("&"):
            self.background.append(subprocess.Popen(["bash", "-c", f"exec {command[:-1]}"]))
        else:
            subprocess.run(["bash", "-c", command], stderr=subprocess.STDOUT)

    def end(self) -> None:
        for process in self.background:
            process.terminate()
        for process in self.background:
            process.wait()


def _main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        interpreter = _Interpreter(Path(folder, "page.py"))
        try:
            told = [interpreter.run(block) for block in json.load(sys.stdin)]
        finally:
            interpreter.end()
    print(json.dumps(told))


if __name__ == "__main__":
    _main()
