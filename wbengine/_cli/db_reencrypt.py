"""`wbengine db reencrypt`: encrypt the store with the current key."""

from __future__ import annotations

import dataclasses
import sys

import click

from wbengine import exceptions
from wbengine._cli import base, errors, store_access
from wbengine._cli import context as contexts
from wbengine._introspection import object_names

__all__ = ["command"]


@base.command(
    "reencrypt",
    help="""Update the encryption of the store to the current key.

    This includes large values. Run it after the first key file with --encrypt, and after
    `keys rotate`, when the new key is in use. What has the current key is only read. Engines may
    run meanwhile. The command can be interrupted and repeated. With a key file that does not
    encrypt, a store without large values is decrypted.

    \b
    Example:
      wbengine db reencrypt --keys keys.json
    """,
)
def command(context: contexts.Context) -> None:
    reencrypt = object_names.load("wbengine.operations._reencrypting:reencrypt")
    settings, printer = context.settings, context.printer
    store_access.check_outlives(settings)
    if not settings.keys:
        raise click.UsageError("a key file is required: --keys or $WBENGINE_KEYS")
    with context.backend() as backend:
        if not store_access.store_exists(settings, backend):
            raise errors.Failed(store_access.missing_message(settings), errors.UNAVAILABLE)
        done = None
        hidden = settings.quiet or not sys.stderr.isatty()
        with (
            errors.failing(errors.USAGE, exceptions.InvalidState),
            click.progressbar(
                length=0, label="encrypt", hidden=hidden, file=sys.stderr, show_percent=False,
                item_show_func=lambda each: each,
            ) as bar,
        ):  # fmt: skip
            for done in reencrypt(backend):
                bar.update(1, f"{done.rows:,} rows, {done.payloads:,} payloads")
    content = dataclasses.asdict(done) if done is not None else {}
    printer.document("db-reencrypt/1", content)
    if done is not None:
        printer.line(
            f"changed {done.rows_written} of {done.rows} rows, and {done.payloads_written} of"
            f" {done.payloads} payloads"
        )
