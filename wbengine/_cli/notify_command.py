"""`wbengine notify`: check the destinations of notifications."""

from __future__ import annotations

import click

from wbengine._cli import base, errors
from wbengine._cli import context as contexts
from wbengine._introspection import object_names
from wbengine.notifications import _service, _settings

__all__ = ["command"]

command = base.Group("notify", help="Check the destinations of notifications.")


@command.command(
    "test",
    help="""Send a test message to each destination of the table [notify].

    The command sends once, without retries. It exits with 69 if a message was not sent.

    \b
    Example:
      wbengine notify test --to chat
    """,
)
@click.option("--to", "names", multiple=True, metavar="NAME",
    help="Send only to this destination (repeatable).")  # fmt: skip
def test(context: contexts.Context, names: tuple[str, ...]) -> int:
    settings, printer = context.settings, context.printer
    if not settings.notify:
        raise errors.Failed("notify must contain a destination", errors.BAD_CONFIG)
    with settings.failing("notify", ValueError, ImportError):
        destinations = _settings.parse_settings(settings.notify)
    known_names = [destination.name for destination in destinations]
    for name in names:
        if name not in known_names:
            raise errors.Failed(
                f"unknown destination {name!r}{object_names.hint(name, known_names)}",
                errors.NO_SUCH,
            )
    rows, content = [], []
    for destination in destinations:
        if names and destination.name not in names:
            continue
        error = _service.send_test(destination)
        place = destination.sender.place
        rows.append((destination.name, place, "sent" if error is None else error))
        content.append({"name": destination.name, "place": place, "error": error})
    printer.document("notify-test/1", {"destinations": content})
    printer.table(("DESTINATION", "PLACE", "RESULT"), rows)
    return errors.UNAVAILABLE if any(each["error"] for each in content) else errors.OK
