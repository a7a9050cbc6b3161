"""Selection of flows by ids or filters, and one operation on all of them."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from wbengine import exceptions, operations
from wbengine._cli import (
    common_options,
    completions,
    confirmation,
    errors,
    params,
    stored_operation,
)
from wbengine.operations import _bulk_selection
from wbengine.views import _flow_list, _formatting, _shown_states

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.operations._operation import Many, Operation
    from wbengine.persistence import base as persistence
    from wbengine.persistence._listing import FlowRow
    from wbengine.types._tags import Condition

__all__ = [
    "FORKS",
    "Selection",
    "filters",
    "flows_option",
    "one_flow_required",
    "perform",
    "rows_of",
]

#: Maximum numbers of flows that a confirmation names, and that a dry run prints.
_MAX_NAMED: Final = 3
_MAX_EXAMPLES: Final = 10


class Selection(NamedTuple):
    """The values of the arguments and options of `flows_option`."""

    ids: tuple[str, ...]
    states: tuple[str, ...]
    name: str | None
    since: float | None
    tags: tuple[Condition, ...]
    error: str | None
    incident: str | None
    queue: str | None
    code: str | None
    has_all: bool
    dry_run: bool
    yes: bool
    rate: float | None = None
    background: bool = False
    forks: bool = False

    @property
    def has_filter(self) -> bool:
        return self.conditions() != _bulk_selection.Filter(forks=self.forks)

    def conditions(self) -> _bulk_selection.Filter:
        return _bulk_selection.Filter(
            states=self.states,
            name=self.name,
            since=self.since,
            tags=tuple(map(str, self.tags)),
            error=self.error,
            incident=self.incident,
            queue=self.queue,
            code=self.code,
            forks=self.forks,
        )

    @property
    def is_given(self) -> bool:
        return bool(self.ids or self.has_filter or self.has_all)

    @property
    def is_single(self) -> bool:
        """Whether the user named one flow."""
        return len(self.ids) == 1

    def check(self) -> None:
        """Check that the user selected flows, in one way.

        :raises Failed: if not.
        """
        ways = [bool(self.ids), self.has_filter or self.has_all]
        if sum(ways) != 1 or (self.has_filter and self.has_all):
            options = (
                "--state, --name, --tag, --since, --error, --incident, --queue, --code-version"
            )
            raise errors.Failed(
                f"select flows by IDs, by filters ({options}), or all with --all", errors.USAGE
            )
        for text in self.ids:
            if "=" in text:
                raise errors.Failed(
                    f"ID must be the uuid of a flow, got {text!r:.80}: --tag {text:.80} selects"
                    f" flows with this tag, and --set {text:.80} of `flow tag` sets it",
                    errors.USAGE,
                )
        if self.ids and self.forks:
            raise errors.Failed("--forks requires filters or --all, not IDs", errors.USAGE)
        for name in ("rate", "background"):
            if self.is_single and getattr(self, name):
                raise errors.Failed(f"--{name} requires filters or several IDs", errors.USAGE)


_FILTERS: Final = (
    click.option("--state", "state_names", multiple=True, metavar="STATE",
        type=params.Choice(_shown_states.LISTED, case_sensitive=False),
        help=f"Only flows in this state (repeatable): {', '.join(_shown_states.LISTED)}."),
    click.option("--name", metavar="TEXT",
        help="Only flows whose name contains TEXT, in upper or lower case."),
    click.option("--tag", "tags", type=params.TAG_CONDITION, multiple=True, metavar="KEY=VALUE",
        help="Only flows with this tag (repeatable; a flow must have all of them). <, <=, > and >="
        " compare numbers and times: 'amount>100', 'due<2026-12-01' (UTC)."),
    click.option("--since", type=params.TIMESTAMP, metavar="WHEN",
        help="Only flows created since this time: 2h, 3d, 2026-11-21T08:00 (UTC)."),
    click.option("--error", metavar="TEXT",
        help="Only flows in FAILURE or REVERTED whose error contains TEXT, in upper or lower"
        " case."),
    click.option("--incident", type=params.Choice(("resent",), case_sensitive=False),
        help="Only flows of which a task was resent or may have run twice: 'resent'."),
    click.option("--queue", metavar="NAME",
        help="Only flows that were submitted to this queue (`wbengine jobs`)."),
    click.option("--code-version", "code", metavar="VERSION",
        help="Only flows whose latest task or step was executed by this version of the code: 'v43',"
        " or 'shop:v43' of one app."),
)  # fmt: skip


#: Option of operations whose filters leave out forks (`Many.omits_forks`).
FORKS: Final = click.option("--forks", is_flag=True,
    help="Filters also select forks that were not forked themselves.")  # fmt: skip


def filters(function: Any) -> Any:
    """Add the options that filter lists of flows."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def flows_option(function: Any) -> Any:
    """Add the ids of flows and the options that select flows.

    The function receives their values as `selection`.
    """

    @functools.wraps(function)
    def command(
        context: Context,
        ids: tuple[str, ...],
        state_names: tuple[str, ...],
        name: str | None,
        since: float | None,
        tags: tuple[Condition, ...],
        error: str | None,
        incident: str | None,
        queue: str | None,
        code: str | None,
        has_all: bool,
        dry_run: bool,
        yes: bool,
        rate: float | None,
        background: bool,
        forks: bool = False,
        **others: Any,
    ) -> Any:
        selection = Selection(
            *(ids, state_names, name, since, tags, error, incident, queue, code),
            *(has_all, dry_run, yes, rate, background, forks),
        )
        return function(context, selection=selection, **others)

    for option in (
        common_options.BACKGROUND,
        click.option("--rate", type=params.RATE, metavar="RATE",
            help="Maximum number of flows in a time, such as 20/s, 300/m, 5000/h.",
            show_default="no limit"),
        common_options.YES,
        common_options.dry_run("the number of flows and some of them"),
        click.option("--all", "has_all", is_flag=True,
            help="Select all flows that the command accepts; without it, IDs or a filter are"
            " required."),
        filters,
        click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=completions.flows),
    ):  # fmt: skip
        command = option(command)
    return command


def one_flow_required(option: str) -> errors.Failed:
    """Return the error for an option of one flow that was given with several flows."""
    hint = ""
    if option == "wait":
        hint = ": omit it for several flows, and wait for each with wbengine flow watch ID"
    return errors.Failed(f"--{option} requires one ID{hint}", errors.USAGE)


def rows_of(
    backend: persistence.Backend,
    selection: Selection,
    states: Collection[str],
    is_selected: Callable[[FlowRow], bool] = lambda row: True,
    *,
    many: Many | None = None,
) -> list[FlowRow]:
    """Return the rows of the selected flows, each once; filters return the newest first.

    :param states: displayed states of the flows that filters select without `--state`.
    :param is_selected: a further condition for filters without `--state`.
    :param many: which flows the filters leave out.
    :raises Failed: if no flow is selected, or flows are selected in two ways.
    :raises NotFound, MultipleChoices: as `operations.find`.
    """
    selection.check()
    if selection.ids:
        found = [operations.find(backend, text) for text in selection.ids]
        return list({row.uuid: row for row in found}.values())
    with contextlib.closing(backend.get_connection()) as connection:
        return _bulk_selection.select(
            connection, selection.conditions(), states, is_selected, many=many
        )


class _Result:
    """The results of an operation on several flows."""

    def __init__(self, rows: Sequence[FlowRow]) -> None:
        self.rows = rows
        self.done: list[FlowRow] = []
        self.refused: list[tuple[FlowRow, str]] = []
        #: uuid of the stored operation, if there is one.
        self.bulk: str | None = None

    def add(self, results: Iterable[tuple[str, str | None]]) -> None:
        """Add results of the stored operation: uuids with the reason of a skipped flow."""
        by_uuid = {row.uuid: row for row in self.rows}
        for uuid, reason in results:
            if reason is None:
                self.done.append(by_uuid[uuid])
            else:
                self.refused.append((by_uuid[uuid], reason))


def perform(
    context: Context,
    operation: Operation,
    selection: Selection,
    rows: Sequence[FlowRow],
    work: Callable[[FlowRow], object],
    stored: stored_operation.Stored,
    schema: str | None = None,
) -> int:
    """Perform an operation on these flows after a confirmation. Return the exit code.

    An error of one flow does not stop the others, except for errors of the store. If the user named
    one flow, its error is raised.

    :param work: performs the operation on one flow that is not part of the stored operation.
    :param stored: how the operation is stored if it has several flows.
    :param schema: name and version of the JSON document, if it is also that of a single flow.
    :raises Failed: if there is no terminal for the confirmation.
    :raises Abort: if the answer is no.
    """
    schema = schema or f"flow-{operation.verb}-many/1"
    if selection.dry_run:
        return _print_examples(context, operation, rows, schema)
    assert operation.many is not None
    if rows and (operation.many.is_destructive or not selection.ids):
        confirmation.confirm(context, f"{operation.verb} {described(rows)}", selection.yes)
    result = _Result(rows)
    to_store = [] if selection.is_single else [row for row in rows if stored.includes(row)]
    own = rows if selection.is_single else [row for row in rows if not stored.includes(row)]
    try:
        if selection.background and own:
            raise errors.Failed(
                f"--background requires submitted flows, got {len(own):,} others", errors.USAGE
            )
        if to_store:
            _carry_out(context, operation, stored, selection, to_store, result)
        for row in _shown(context, operation, own):
            try:
                work(row)
            except exceptions.StorageFailure:
                raise
            except (exceptions.WbengineException, errors.Failed, TimeoutError, ValueError) as error:
                if selection.is_single:
                    raise
                result.refused.append((row, errors.line_of(error)))
            else:
                result.done.append(row)
    except BaseException:
        if result.done:
            _print_result(context, operation.many, result, schema)
        raise
    return _print_result(context, operation.many, result, schema, selection.background)


def _carry_out(
    context: Context,
    operation: Operation,
    stored: stored_operation.Stored,
    selection: Selection,
    rows: Sequence[FlowRow],
    result: _Result,
) -> None:
    """Store an operation on these flows, and carry it out unless the user left it to `serve`."""
    bulk = stored_operation.start(
        operation, stored, rows, selection.conditions().to_dict(), selection.rate
    )
    result.bulk = bulk.uuid
    if selection.background:
        return
    count = _formatting.count(len(rows), "flow")
    context.printer.note(f"operation {bulk.uuid}: {operation.verb} {count}")
    try:
        stored_operation.follow(context, stored.backend, bulk)
    finally:
        with contextlib.suppress(exceptions.StorageFailure):
            result.add(stored_operation.results(stored.backend, bulk))


def described(rows: Sequence[FlowRow]) -> str:
    """Return the number of flows and the names of some."""
    named = [
        f"{row.name!r} ({row.uuid}, {_flow_list.shown_state(row)})" for row in rows[:_MAX_NAMED]
    ]
    if len(rows) == 1:
        return named[0]
    more = [f"{len(rows) - _MAX_NAMED:,} more"] if len(rows) > _MAX_NAMED else []
    return f"{len(rows):,} flows: {', '.join([*named, *more])}"


def _shown(context: Context, operation: Operation, rows: Sequence[FlowRow]) -> Iterator[FlowRow]:
    """Yield the rows, and show the progress on a terminal."""
    with stored_operation.progress(context, operation.verb, len(rows)) as show:
        for number, row in enumerate(rows, 1):
            yield row
            show(number)


def _print_examples(
    context: Context, operation: Operation, rows: Sequence[FlowRow], schema: str
) -> int:
    printer = context.printer
    examples = rows[:_MAX_EXAMPLES]
    content = {
        "dry_run": True,
        "count": len(rows),
        "flows": [row.uuid for row in rows],
        "examples": [
            {"uuid": row.uuid, "name": row.name, "state": row.state, "error": row.error}
            for row in examples
        ],
    }
    printer.document(schema, content)
    if not rows:
        printer.hint("No flows found.")
    elif len(rows) == 1:
        printer.line(f"would {operation.verb} {described(rows)}")
    else:
        printer.line(f"would {operation.verb} {len(rows):,} flows")
        cells = [(row.uuid, row.name, _flow_list.shown_state(row), row.error) for row in examples]
        printer.table(("UUID", "NAME", "STATE", "ERROR"), cells, folded=("NAME", "ERROR"))
        if len(rows) > len(examples):
            printer.line(f"{len(rows) - len(examples):,} more")
    return errors.OK


def _print_result(
    context: Context, many: Many, result: _Result, schema: str, background: bool = False
) -> int:
    printer = context.printer
    refused = [
        {"uuid": row.uuid, "name": row.name, "reason": reason} for row, reason in result.refused
    ]
    content = {
        "dry_run": False,
        "count": len(result.rows),
        "flows": [row.uuid for row in result.done],
        "refused": refused,
    }
    if result.bulk is not None:
        content["bulk"] = result.bulk
    printer.document(schema, content)
    if background and result.bulk is not None:
        printer.line(f"stored operation {result.bulk} on {len(result.rows):,} flows")
        printer.guide(f"to watch it: wbengine bulk show {result.bulk}")
        return errors.OK
    if not result.rows:
        printer.hint("No flows found.")
        return errors.OK
    if result.done:
        printer.line(f"{many.done} {described(result.done)}")
    # The reasons of several flows differ only in their uuids.
    reasons = Counter(reason.replace(row.uuid, "ID") for row, reason in result.refused)
    examples = {reason.replace(row.uuid, "ID"): row for row, reason in reversed(result.refused)}
    if reasons:
        table = [(count, reason, examples[reason].uuid) for reason, count in reasons.most_common()]
        columns = ("REFUSED", "REASON", "EXAMPLE")
        printer.table(columns, table, right=("REFUSED",), folded=("REASON",))
    not_tried = len(result.rows) - len(result.done) - len(result.refused)
    if not_tried:
        printer.note(f"not tried: {not_tried:,} flows")
    return errors.UNHEALTHY if result.refused or not_tried else errors.OK
