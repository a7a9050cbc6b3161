"""`wbengine serve`: run submitted flows until the process is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wbengine._cli import (
    base,
    common_options,
    engine_options,
    errors,
    exposed_files,
    log_output,
    params,
    schedule_command,
    settings_schema,
    stop_signals,
    store_access,
)
from wbengine._cli import context as contexts
from wbengine._introspection import object_names

if TYPE_CHECKING:
    from wbengine.conductors.service import ConductorService
    from wbengine.persistence import base as persistence
    from wbengine.telemetry._conducting import Watch

__all__ = ["command"]


@base.command(
    "serve",
    log_level="info",
    help="""Run submitted flows and fire schedules.

    The command runs flows of `wbengine flow submit` and `engines.submit`, resumes flows that lost
    their engine, and fires the schedules of `wbengine schedule`, until it is stopped. Several of
    these processes share the work. Modules of the current folder can be imported.

    The flows are in the store (--persistence). Their jobs are there too, unless --board is the URL
    of a job board in Redis, ZooKeeper or etcd.

    With --retention, or the table [retention] in wbengine.toml, one of these processes at a time
    deletes ended flows that are older. Without it, flows are kept.

    With the table [notify] in wbengine.toml, one of these processes at a time sends messages about
    failed flows and other events (`wbengine notify test` tests it).

    With --code-version, the process runs only flows of this or an earlier version of the code, and
    flows without a version. Versions are ordered by their first appearance in the store.

    After the first SIGTERM or Ctrl-C, the process claims no more jobs and suspends its flows after
    their running tasks, so that other processes can resume them. A second signal ends the process
    at once with exit code 1. SIGHUP and SIGQUIT stop it like SIGTERM. SIGUSR1 logs its running
    flows and the tracebacks of its threads.

    \b
    Example:
      wbengine serve --persistence postgresql://flows@db/flows --engine workers
    """,
)
@click.option("--max-simultaneous", type=click.IntRange(1, 1000), metavar="N",
    help="Maximum number of flows that run at a time.",
    show_default="number of processors + 1")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="NAME",
    help="Take flows of this queue; '*': of all queues (repeatable: in this order).",
    show_default="default")  # fmt: skip
@common_options.ENGINE
@common_options.CODE_VERSION
@click.option("--app", metavar="NAME",
    help="Application whose versions are ordered.",
    show_default="top-level package of the factory of each flow")  # fmt: skip
@click.option("--code-version-policy", type=params.Choice(("compatible", "exact")),
    default="compatible", show_default=True,
    help="Run flows of this and earlier versions, or only of this version.")  # fmt: skip
@click.option("--retention", multiple=True, metavar="KEY=VALUE", callback=params.once,
    type=params.Parsed("KEY=VALUE", settings_schema.key_and_value),
    help="Delete ended flows after this time, or above this number of flows: success=7d,"
    " failure=30d, reverted=30d, max_flows=1000000 (repeatable).",
    show_default="the setting retention")  # fmt: skip
@common_options.METRICS
@common_options.HEALTH
@common_options.STRICT
def command(
    context: contexts.Context,
    max_simultaneous: int | None,
    queues: tuple[str, ...],
    engine: str,
    code_version: str | None,
    app: str | None,
    code_version_policy: str,
    retention: dict[str, Any],
    metrics_addr: Any,
    health_addr: Any,
    strict: bool,
) -> int:
    from wbengine._cli import claimed_jobs
    from wbengine.conductors import service

    if strict:
        exposed_files.refuse(context)
    store_access.check_outlives(context.settings, ", to which no other process can submit flows")
    options = engine_options.from_settings(context, engine)
    declared = schedule_command.declared(context)
    with context.settings.failing("retention", ValueError):
        service.Retention.parse(context.settings.retention)
    notify = context.settings.notify
    if notify:
        with context.settings.failing("notify", ValueError, ImportError):
            object_names.load("wbengine.notifications._settings:parse_settings")(notify)
    watch = _watch(metrics_addr, health_addr)
    with context.backend(upgrade=True, missing_ok=True, patient=True) as backend:
        board = claimed_jobs.separate_board(context, backend)
        with errors.failing(errors.USAGE, ValueError):
            conductor = service.ConductorService(
                backend,
                engine=engine,
                engine_options=options,
                max_simultaneous=max_simultaneous,
                queues=queues or None,
                board=board,
                schedules=declared,
                code_version=code_version,
                app=app,
                exact_code=code_version_policy == "exact",
                retention={**context.settings.retention, **retention},
                notify=notify,
                listeners=() if watch is None else watch.listeners,
            )

        def stop() -> None:
            context.announce("stopping after the running tasks; press Ctrl-C again to stop at once")
            conductor.stop()

        with (
            _serving(watch, conductor, backend),
            log_output.fields(code_version=code_version),
            stop_signals.StopSignals(
                stop, stop_signals.exit_at_once, lambda: conductor.running_engines
            ).installed(),
        ):
            where = context.settings.store if board is None else board.place
            if conductor.connect():
                context.announce(
                    f"{conductor.name} runs flows submitted to {where}",
                    conductor=conductor.name,
                    store=context.settings.store,
                    engine=engine,
                )
                context.printer.guide(
                    "to submit a flow: wbengine flow submit MODULE:FACTORY; press Ctrl-C to stop"
                    " after the running tasks"
                )
                conductor.run()
    return errors.OK


def _watch(metrics_addr: Any, health_addr: Any) -> Watch | None:
    if metrics_addr is None and health_addr is None:
        return None
    from wbengine.telemetry import _conducting

    with errors.failing(errors.USAGE, ImportError):
        return _conducting.Watch(metrics_addr, health_addr)


@contextlib.contextmanager
def _serving(
    watch: Watch | None, conductor: ConductorService, backend: persistence.Backend
) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if watch is not None:
            with errors.failing(errors.UNAVAILABLE, OSError):
                stack.enter_context(watch.serving(conductor, backend))
        yield
