"""The systems that are measured: where they come from, where they run, what they do by default."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

#: What tasks travel through.
WIRES = ("redis", "amqp", "filesystem")
#: Kinds of engines that need no workers.
LOCALS = ("serial", "parallel")


@dataclass(frozen=True)
class System:
    """One way to run tasks; several may be ways to run one package."""

    name: str
    title: str
    #: The module `drivers/on_DRIVER.py`.
    driver: str
    #: What pip is asked for, into an environment of the driver's name; nothing: into our own.
    requirements: tuple[str, ...]
    #: What it is measured on.
    media: Collection[str]
    #: What its users get who ask for nothing.
    defaults: str
    variant: str = ""
    #: How its worker runs four tasks at once.
    slots: str = "4 threads"
    #: Whether it is one that users would pick instead.
    peer: bool = True
    #: What was told otherwise than by default, so that it is not measured at less than it can do.
    helped: str = field(default="", kw_only=True)
    #: What its worker logs by default, and what it was told: nobody is to write a line per task.
    log: str = field(kw_only=True)
    #: Whether ours is promised to be faster; if not, how much faster it is, is told all the same.
    judged: bool = field(default=True, kw_only=True)


TASKFLOW = ("taskflow[database]>=6.5,<7", "kombu[redis]>=5.3")
_CELERY = ("celery[redis]>=5.5,<6",)
_TASKIQ = ("taskiq>=0.11,<1", "taskiq-redis>=1", "taskiq-aio-pika>=0.4")
_WBENGINE = (
    "acknowledged with the result, never before (RabbitMQ: behind it, on the same channel; requests"
    " are confirmed); a row in a ledger for each task"
    " (Redis, folders: at most one run of each attempt), or persistent requests (RabbitMQ); a"
    " worker holds no more than it runs; results stay in the engine's storage"
)
_POLLS = "folders are looked at each 10 ms (by itself once a second)"
_TASKIQ_HELPED = "results are asked for each ms (by itself each 0.2 s)"
_HUEY = (
    "taken from the list before it runs (what a dying worker had is lost); a worker holds no more"
    " than it runs; results until they are read"
)
_HUEY_PACKAGES = ("huey>=3,<4", "redis>=5")
_LINES, _WARNINGS = "lines for each task; told: warnings only", "warnings"

SYSTEMS = (
    System(
        "wbengine", "wbengine", "wbengine", (), (*WIRES, *LOCALS),
        _WBENGINE + "; an executor for each flow: connecting and finding the workers is measured",
        peer=False, log=_LINES,
    ),
    System(
        "wbengine-shared", "wbengine, executor kept", "wbengine", (), WIRES,
        _WBENGINE + "; one executor for all flows, as others keep their connections",
        variant="shared", peer=False, log=_LINES,
    ),
    System(
        "wbengine-ledger", "wbengine, ledger in Redis", "wbengine", (), ("amqp",),
        "as with wbengine; a row in a ledger for each task (at most one run of each attempt), and"
        " requests that are not persistent: the engine sends again what a broker loses",
        variant="ledger", peer=False, helped="ledger=redis://... for both sides", log=_LINES,
    ),
    System(
        "wbengine-transient", "wbengine, requests in memory", "wbengine", (), ("amqp",),
        "as with wbengine, without a ledger; requests that are not persistent: of those that a"
        " broker loses, tasks that are not idempotent may fail with WorkerLost",
        variant="transient", peer=False, helped="broker_persistent=False", log=_LINES,
    ),
    System(
        "wbengine-keys", "wbengine, one key", "wbengine", (), ("redis", "amqp"),
        "as with wbengine; all messages are signed and verified (HMAC-SHA256)",
        variant="keys", peer=False, helped="WBENGINE_KEYS of one file", log=_LINES, judged=False,
    ),
    System(
        "wbengine-roles", "wbengine, a key for each role", "wbengine", (), ("redis", "amqp"),
        "as with wbengine; all messages are signed and verified (Ed25519)",
        variant="roles", peer=False, helped="WBENGINE_KEYS of two files", log=_LINES, judged=False,
    ),
    System(
        "kombu", "kombu alone (echo)", "kombu", ("kombu[redis]>=5.3",), WIRES,
        "acknowledged when the answer was sent; durable queues, persistent messages, no confirms,"
        " no limit to what a worker is handed; it runs nothing and keeps nothing",
        slots="1 loop", peer=False, helped=_POLLS, log="nothing",
    ),
    System(
        "taskflow", "TaskFlow", "taskflow", TASKFLOW, (*WIRES, *LOCALS),
        "acknowledged before it runs; queues that are not durable and go with their users, no"
        " confirms; no limit to what a worker is handed; results stay in the engine's storage",
        helped=_POLLS, log=_WARNINGS,
    ),
    System(
        "celery-prefork", "Celery, prefork", "celery", _CELERY, WIRES,
        "acknowledged before it runs; persistent messages, no confirms; a worker holds 4 for each"
        " process; results in Redis for a day, on AMQP sent to the caller (rpc), else in files",
        variant="prefork", slots="4 processes", helped=_POLLS, log=_WARNINGS,
    ),
    System(
        "celery-threads", "Celery, threads", "celery", _CELERY, WIRES,
        "as with prefork", variant="threads", helped=_POLLS, log=_WARNINGS,
    ),
    System(
        "dramatiq", "Dramatiq", "dramatiq", ("dramatiq[rabbitmq,redis]>=2,<3",), ("redis", "amqp"),
        "acknowledged after it ran; persistent messages, no confirms; a worker holds 2 for each"
        " thread; no results: here kept in Redis, for 10 minutes",
        slots="1 process, 4 threads", log="that it begins and ends",
    ),
    System(
        "huey", "Huey", "huey", _HUEY_PACKAGES, ("redis", "filesystem"),
        _HUEY,
        helped="results are asked for each 2 ms, in a chain each ms (by itself after 50 ms, and"
        " then less and less often); folders are looked at each 10 ms (by itself 10 times a second,"
        " and less and less)",
        log=_LINES,
    ),
    System(
        "huey-notify", "Huey, told to notify", "huey", _HUEY_PACKAGES, ("redis",), _HUEY,
        variant="notify",
        helped="notify_result=True: who waits for a result is woken by Redis",
        log=_LINES, judged=False,
    ),
    System(
        "taskiq", "Taskiq (stream)", "taskiq", _TASKIQ, ("redis", "amqp"),
        "acknowledged after the result was stored; a worker is handed 100 from a stream, 10 by"
        " RabbitMQ (persistent messages, confirmed); results in Redis, for ever",
        slots="1 process, 4 at once", helped=_TASKIQ_HELPED, log=_LINES,
    ),
    System(
        "taskiq-list", "Taskiq (list)", "taskiq", _TASKIQ, ("redis",),
        "taken from the list before it runs; results in Redis, for ever", variant="list",
        slots="1 process, 4 at once", helped=_TASKIQ_HELPED, log=_LINES,
    ),
    System(
        "rq", "RQ", "rq", ("rq>=2,<3",), ("redis",),
        "moved to a list of what runs; a process is forked for each job; results in Redis, for 500"
        " s",
        slots="a pool of 4 workers", log=_LINES,
    ),
)  # fmt: skip

NAMES = tuple(system.name for system in SYSTEMS)
#: What may be asked for.
KNOWN = tuple(dict.fromkeys([*(system.driver for system in SYSTEMS), *NAMES]))


def of(names: Collection[str]) -> list[System]:
    """Those of these names; the name of a driver that is no system's means all of its ways."""
    return [
        one
        for one in SYSTEMS
        if one.name in names or (one.driver in names and one.driver not in NAMES)
    ]


def pythons(
    chosen: Collection[System], own: str, ensure: Callable[..., str | None]
) -> dict[str, str]:
    """The interpreter of each, by name; those that cannot be installed are left out.

    `ensure(name, *requirements)` installs them, and has told why when it returns None.
    """
    had: dict[str, str | None] = {}
    for one in chosen:
        if one.driver not in had:
            had[one.driver] = ensure(one.driver, *one.requirements) if one.requirements else own
    return {one.name: python for one in chosen if (python := had[one.driver])}
