"""The census as a command."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wbengine import _names, _streams, states
from wbengine.examples.census import flow, options, page, running, sources, tasks
from wbengine.examples.census.fleet import Unavailable
from wbengine.examples.census.options import Options, UsageError
from wbengine.examples.census.progress import Board
from wbengine.examples.census.record import Record
from wbengine.examples.census.sources import Tree

_TOP: Final = 15
_NUMBERS: Final = ("files", "lines", "code", "functions", "classes", "imports")
_PROG: Final = "quickstart"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (see `options`)."""
    _streams.ensure()
    try:
        said = options.parse(sys.argv[1:] if argv is None else argv, _PROG)
        tree = sources.standard_library() if said.root is None else sources.folder(said.root)
        _check_modules(said, tree)
    except (UsageError, OSError) as error:
        _complain(f"{error}; see {_PROG} --help" if isinstance(error, UsageError) else f"{error}")
        return options.USAGE
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.default_int_handler)
    try:
        return _run(said, tree)
    except Unavailable as error:
        _complain(str(error))
        return options.UNAVAILABLE
    except running.FlowFailed as failed:
        _show_failure(failed)
        return options.FAILED
    except OSError as error:
        _complain(str(error))
        return options.FAILED
    except KeyboardInterrupt:
        _complain("interrupted; nothing is left of this run")
        return options.INTERRUPTED


def _check_modules(said: Options, tree: Tree) -> None:
    if not tree.modules:
        raise UsageError(f"--root {said.root}: no Python files in it")
    if said.fail is not None and said.fail not in tree.modules:
        near = _names.hint(said.fail, list(tree.modules))
        raise UsageError(f"--fail {said.fail}: no such module in {tree.title}{near}")


def _run(said: Options, tree: Tree) -> int:
    groups = sources.groups(tree)
    with Board(Console(stderr=True), len(flow.steps(groups))) as board:
        record = running.run(said, tree, groups, board, functools.partial(_write_page, said))
    try:
        _show(said, record)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `quickstart | head -1`; the files are written
        _streams.forget_output()
    return options.OK


def _show(said: Options, record: Record) -> None:
    console = Console()
    with console.capture() as table:  # rich would end the process if nobody reads
        console.print(_table(record))
    print(table.get(), end="")
    total = record.census["total"]
    if (longest := total["longest"]) is not None:
        print(f"longest function: {longest['name']}, {longest['lines']:,} lines, {longest['at']}")
    if (deepest := total["deepest"]) is not None:
        print(f"deepest nesting: {deepest['depth']:,} blocks, {deepest['at']}")
    if total["unparsed"]:
        unparsed = len(total["unparsed"])
        print(f"not parsed: {unparsed:,} of {total['files']:,} files (the reports name them)")
    for name in (tasks.REPORT, running.PAGE):
        print(f"wrote {_nearby(said.out / name)}")
    print(f"flow ran in {record.seconds:.2f} s on {said.engine}{_workers(said)}")


def _table(record: Record) -> Table:
    census = record.census
    modules = sorted(census["modules"], key=lambda module: (-module["lines"], module["name"]))
    table = Table(
        title=f"Census of {escape(census['source'])}",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_footer=True,
    )
    table.add_column("module", footer=f"all {len(modules):,}", no_wrap=True, overflow="ellipsis")
    for name, value in zip((*_NUMBERS, "longest"), _numbers(census["total"]), strict=True):
        table.add_column(name, footer=value, justify="right", no_wrap=True)
    for module in modules[:_TOP]:
        table.add_row(escape(module["name"]), *_numbers(module))
    if len(modules) > _TOP:
        table.add_row(f"… {len(modules) - _TOP:,} more", style="dim")
    return table


def _numbers(counts: dict[str, Any]) -> list[str]:
    longest = counts["longest"]
    return [*(f"{counts[key]:,}" for key in _NUMBERS), f"{longest['lines']:,}" if longest else ""]


def _show_failure(failed: running.FlowFailed) -> None:
    for each in failed.failed:
        print(f"\ntask {each.task!r} failed on {each.worker}:", file=sys.stderr)
        print(each.failure.pformat(traceback=True), file=sys.stderr)
    if not failed.failed:
        print(f"\n{type(failed.error).__name__}: {failed.error}", file=sys.stderr)
    undone = failed.state == states.REVERTED
    _complain(
        "the flow failed and was reverted: nothing is left of this run"
        if undone
        else f"the flow failed and ended {failed.state}; what its tasks wrote was removed"
    )


def _workers(said: Options) -> str:
    if said.engine == running.SERIAL:
        return ""
    return f" ({said.workers} worker{'' if said.workers == 1 else 's'})"


def _write_page(said: Options, record: Record) -> None:
    """Write the page, whole or not at all."""
    path = said.out / running.PAGE
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(page.render(record), encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _nearby(path: Path) -> str:
    """The path as seen from here, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _complain(message: str) -> None:
    print(f"{_PROG}: {' '.join(message.split())}", file=sys.stderr)
