"""The run that the options of `tools/chaos` describe, and its summary."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos import firings, ledgers, modes, served, stage, upgrades
from tests.chaos.checking import Verdict

#: Maximum number of problems in the output.
SHOWN = 40


def run(options: Any, folder: Path) -> dict[str, Any]:
    """Run, print the progress and a summary, and return the figures."""
    if options.flows or options.firings:
        return _run_served(options, folder)
    began = time.monotonic()
    plan, act = chosen(options, folder)
    verdict, played = stage.run(plan, folder, act)
    summed = figures(verdict, played, time.monotonic() - began)
    for line in summary(verdict, summed):
        print(line)
    return summed


def _run_served(options: Any, folder: Path) -> dict[str, Any]:
    """Run submitted flows or schedules and return the figures."""
    if options.firings:
        with ledgers.place(options.store, folder) as store:
            assert store.url is not None
            summed = firings.run(store.url, folder, options.firings, options.kills, options.seed)
        lines = firings.summary(summed)
    else:
        plan = served.Plan(
            options.flows,
            options.kills or options.stops,
            options.seed,
            options.transport,
            options.store,
            options.board,
            options.workflows,
            options.requests,
            options.orders,
        )
        if options.stops:
            plan = dataclasses.replace(plan, stops=True, conductors=6)
        if options.in_process:
            plan = dataclasses.replace(plan, workers=0)
        summed = served.run(plan, folder)
        lines = served.summary(summed)
    print(*lines, sep="\n")
    return summed


def chosen(options: Any, folder: Path) -> tuple[stage.Plan, stage.Act]:
    """Return the plan and the mode of fault injection."""
    plan = stage.Plan(options.transport, options.seed, options.ledger)
    plan.control = options.engine == "taskflow"
    act: stage.Act
    if options.kills:
        _many_short(plan, options.tasks)
        if options.upgrade:
            plan.engines, plan.expiry, plan.patience = 2, 3.0, 60.0
        act = modes.Kills(options.kills, options.tasks)
    elif options.stops:
        plan.expiry, plan.long = 3.0, 1.0
        act = modes.Stops(options.stops)
    elif options.terminations:
        act = modes.Terminations(options.terminations)
    elif options.freeze_engine:
        plan.engines, plan.threads, plan.width = 2, 3, 60
        plan.seconds, plan.long, plan.kinds = 0.5, 5.0, ("plain",)
        act = modes.Frozen(options.freeze_engine)
    elif options.broker_restarts:
        act = modes.Restarts(options.broker_restarts)
    else:
        act = modes.Weather(options.minutes or 1)
    for name in ("expiry", "workers", "engines", "patience"):
        if getattr(options, name) is not None:
            setattr(plan, name, getattr(options, name))
    if plan.control:
        plan.kinds = ("plain",)
    if options.upgrade:
        act = upgrades.plan_upgrade(
            plan,
            folder,
            options.kills,
            options.tasks,
            skip=options.skip_release,
            checks=not options.without_checks,
        )
    return plan, act


def _many_short(plan: stage.Plan, tasks: int) -> None:
    # Half of the flows are not idempotent: only their requests can end as WorkerLost.
    plan.kinds = ("plain", "once")
    plan.seconds, plan.long, plan.expiry = 0.004, 0.02, 2.0
    plan.width = max(4, min(99, tasks // 12))
    plan.threads = 4


def figures(verdict: Verdict, played: stage.Stage, seconds: float) -> dict[str, Any]:
    counts = verdict.counts
    plan = played.plan
    return {
        "transport": plan.transport,
        "ledger": plan.ledger,
        "engine": "taskflow" if plan.control else "wbengine",
        "seed": plan.seed,
        "seconds": round(seconds, 1),
        "faults": dict(sorted(Counter(fault.kind for fault in played.crew.faults).items())),
        "flows": counts["flows"],
        "tasks": counts["tasks"],
        "runs": counts["runs"],
        "lost": counts["lost"],
        "stuck": counts["stuck"],
        "wrong": counts["wrong ends"] + counts["wrong results"],
        "most runs of one epoch": counts["most runs of one epoch"],
        "WorkerLost": counts["WorkerLost"],
        "WorkerLost never begun": counts["WorkerLost never begun"],
        "runs again": counts["again"],
        "runs again without a loss": counts["again without a loss"],
        "detection s": {
            "count": len(verdict.detected),
            "p50": _rounded(verdict.percentile(0.5)),
            "p99": _rounded(verdict.percentile(0.99)),
            "max": _rounded(verdict.percentile(1.0)),
        },
        "ignored answers": dict(stage.ignored(played)),
        "notes": played.notes,
        "problems": len(verdict.problems),
        "first problems": verdict.problems[:SHOWN],
    }


def _rounded(seconds: float) -> float | None:
    return None if seconds != seconds else round(seconds, 2)


def summary(verdict: Verdict, summed: Mapping[str, Any]) -> list[str]:
    lines = [f"PROBLEM {problem}" for problem in verdict.problems[:SHOWN]]
    if len(verdict.problems) > SHOWN:
        lines.append(f"... and {len(verdict.problems) - SHOWN} more")
    faults = ", ".join(f"{count} x {kind}" for kind, count in summed["faults"].items())
    took = summed["detection s"]
    ledger = summed["ledger"] or ("none" if summed["transport"] == "amqp" else "the broker's")
    detection = f"p50 {took['p50']} s, p99 {took['p99']} s, max {took['max']} s"
    runs = f"{summed['runs']} runs ({summed['runs again']} again under a later epoch)"
    wrong = f"lost {summed['lost']}, stuck {summed['stuck']}, wrong {summed['wrong']}"
    lost_requests = f"{summed['WorkerLost']}, {summed['WorkerLost never begun']} never begun"
    epochs = f"at most {summed['most runs of one epoch']} runs of one epoch"
    ended = f"{summed['seconds']:.0f} s, {summed['problems']} problems"
    return [
        *lines,
        f"{summed['engine']} over {summed['transport']}, ledger: {ledger}, seed {summed['seed']}",
        f"faults: {faults or 'none'}",
        f"detection of lost tasks: {took['count']}, {detection}",
        f"requests that ended as WorkerLost: {lost_requests}",
        f"answers that were ignored: {summed['ignored answers'] or 'none'}",
        *(f"{name}: {value}" for name, value in summed["notes"].items()),
        f"{summed['flows']} flows, {summed['tasks']} tasks, {runs}; {wrong}, {epochs}; {ended}",
    ]
