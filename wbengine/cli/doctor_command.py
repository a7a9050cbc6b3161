"""`wbengine doctor`: what is wrong, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from wbengine.cli import base, errors, exposed, options, output
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.diagnosis.findings import Finding, Place

__all__ = ["command"]

_SIGNS: Final = {True: "✔", False: "✘", None: "-"}
#: Where those cannot be written.
_PLAIN_SIGNS: Final = {True: "+", False: "x", None: "-"}


class _Doctor(base.Command):
    """Settings that make no sense are a finding, and no error."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        as_json = "--json" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except errors.Failed as error:
            _tell_unset(error, as_json)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except errors.Failed as error:
            _tell_unset(error, False)


def _tell_unset(error: errors.Failed, as_json: bool) -> NoReturn:
    if error.code != errors.BAD_CONFIG:
        raise error
    from wbengine.diagnosis import findings

    fix = "mend it: `wbengine config schema` tells what may be set"
    _report(output.Printer(as_json=as_json), [findings.bad("settings", error.line, fix)])
    raise click.exceptions.Exit(errors.UNHEALTHY)


@base.command(
    "doctor",
    _Doctor,
    help="""Look for what is wrong with settings, packages, broker, ledger, workers and store, and
    tell how to fix it. Exits with 1 if something is wrong; that there is no worker yet is no fault,
    unless --min-workers says so.

    All of it takes 7 seconds at most, or 2 more than --timeout: what did not answer is named.

    \b
    wbengine doctor --broker redis://queues/0 --persistence postgresql://flows@db/flows
    """,
)
@click.option("--min-workers", type=click.IntRange(0, 100_000), default=0, metavar="N",
    show_default=True, help="So many have to answer.")  # fmt: skip
@options.strict("Take it for wrong, too, if there are")
def command(context: contexts.Context, min_workers: int, strict: bool) -> int:
    from wbengine.diagnosis import findings

    settings = context.settings
    place = findings.Place(
        exchange=settings.exchange,
        url=settings.url,
        transport=settings.transport,
        transport_options=settings.transport_options,
        ledger=settings.ledger,
        keys=settings.keys,
        persistence=settings.store,
        board=settings.board,
        timeout=settings.timeout,
    )
    return _report(context.printer, _all(context, place, min_workers, strict))


def _all(
    context: contexts.Context, place: Place, min_workers: int, strict: bool
) -> Iterator[Finding]:
    from wbengine.diagnosis import examining, findings

    settings = context.settings
    files = ", ".join(str(file.path) for file in settings.files)
    yield findings.good("settings", files or "no files: what is not said has its default")
    tell = findings.bad if strict else findings.note
    for one in exposed.found(context):
        yield tell("files", str(one), one.fix)
    yield from examining.examine(place, min_workers, context.began)


def _report(printer: output.Printer, found: Iterable[Finding]) -> int:
    """Tell each finding as soon as it is made; the exit code."""
    signs = _SIGNS if printer.can_write("✔✘") else _PLAIN_SIGNS
    findings: list[Finding] = []
    for one in found:
        findings.append(one)
        printer.line(f"{signs[one.good]} {one.check}: {one.text}")
        if one.fix is not None:
            printer.line(f"    fix: {one.fix}")
    wrong = sum(1 for one in findings if one.good is False)
    content = {"good": not wrong, "findings": [one.to_dict() for one in findings]}
    printer.document("doctor/1", content)
    printer.hint(f"{wrong} wrong" if wrong else "nothing is wrong")
    return errors.UNHEALTHY if wrong else errors.OK
