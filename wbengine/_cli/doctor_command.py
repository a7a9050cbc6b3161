"""`wbengine doctor`: find problems and print how to fix them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from wbengine._cli import base, common_options, errors, exposed_files, output
from wbengine._cli import context as contexts

if TYPE_CHECKING:
    from wbengine.diagnosis.findings import Finding, Place

__all__ = ["command"]

_SIGNS: Final = {True: "✔", False: "✘", None: "-"}
#: Signs for outputs whose encoding does not support the others.
_PLAIN_SIGNS: Final = {True: "+", False: "x", None: "-"}


class _Doctor(base.Command):
    """A command that reports invalid settings as a finding, not as an error."""

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
            _report_settings(error, as_json)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except errors.Failed as error:
            _report_settings(error, False)


def _report_settings(error: errors.Failed, as_json: bool) -> NoReturn:
    if error.code != errors.BAD_CONFIG:
        raise error
    from wbengine.diagnosis import findings

    fix = "correct the setting; `wbengine config schema` prints all settings"
    _print_findings(output.Printer(as_json=as_json), [findings.bad("settings", error.line, fix)])
    raise click.exceptions.Exit(errors.UNHEALTHY)


@base.command(
    "doctor",
    _Doctor,
    help="""Find problems and print how to fix them.

    The command checks settings, packages, broker, ledger, workers, store and the place of large
    values. It exits with 1 if it finds a problem. A missing worker is a problem only with
    --min-workers.

    The checks take at most --timeout plus 2 seconds. Checks without an answer by then are reported.

    \b
    Example:
      wbengine doctor --broker redis://queues/0 --persistence postgresql://flows@db/flows
    """,
)
@click.option("--min-workers", type=click.IntRange(0, 100_000), default=0, metavar="N",
    help="Report a problem if fewer than N workers answer.")  # fmt: skip
@common_options.strict("Also report a problem")
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
        payloads=settings.payloads,
        timeout=settings.timeout,
        notify=settings.notify,
    )
    return _print_findings(context.printer, _findings(context, place, min_workers, strict))


def _findings(
    context: contexts.Context, place: Place, min_workers: int, strict: bool
) -> Iterator[Finding]:
    from wbengine.diagnosis import _examining, findings

    settings = context.settings
    files = ", ".join(str(file.path) for file in settings.files)
    yield findings.good(
        "settings", files or "no files found; all settings without a value have their defaults"
    )
    make_finding = findings.bad if strict else findings.note
    for exposed_file in exposed_files.find(context):
        yield make_finding("files", str(exposed_file), exposed_file.fix)
    yield from _examining.examine(place, min_workers, context.started_at)


def _print_findings(printer: output.Printer, incoming: Iterable[Finding]) -> int:
    signs = _SIGNS if printer.can_write("✔✘") else _PLAIN_SIGNS
    findings: list[Finding] = []
    for finding in incoming:
        findings.append(finding)
        printer.line(f"{signs[finding.good]} {finding.check}: {finding.text}")
        if finding.fix is not None:
            printer.line(f"    fix: {finding.fix}")
    wrong = sum(1 for finding in findings if finding.good is False)
    content = {"good": not wrong, "findings": [finding.to_dict() for finding in findings]}
    printer.document("doctor/1", content)
    printer.hint(
        f"{wrong} problem{'s' if wrong > 1 else ''} found" if wrong else "no problems found"
    )
    return errors.UNHEALTHY if wrong else errors.OK
