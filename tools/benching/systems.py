"""The measured systems: packages, media and default behaviour."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

#: Brokers that several systems support.
WIRES = ("redis", "amqp", "filesystem")
#: Databases as brokers.
DATABASES = ("postgresql", "mysql")
BROKERS = (*WIRES, *DATABASES)
#: Kinds of engines without workers.
LOCALS = ("serial", "parallel")


@dataclass(frozen=True)
class System:
    """A way to run tasks. Several of them can use the same package."""

    name: str
    title: str
    #: Name of the module `drivers/on_DRIVER.py`.
    driver: str
    #: Requirements that pip installs in the environment of the driver; empty: wbengine's
    #: environment.
    requirements: tuple[str, ...]
    #: Media on which the system is measured.
    media: Collection[str]
    #: Behaviour with default settings.
    defaults: str
    variant: str = ""
    #: How its worker runs four tasks at a time.
    slots: str = "4 threads"
    #: Whether it is an alternative to wbengine.
    peer: bool = True
    #: Settings that were changed so that the system reaches its full speed.
    helped: str = field(default="", kw_only=True)
    #: Default log output of its worker and its setting here: no system writes a line for each task.
    log: str = field(kw_only=True)
    #: Whether there is a target for wbengine in comparison with this system.
    judged: bool = field(default=True, kw_only=True)


TASKFLOW = ("taskflow[database]>=6.5,<7", "kombu[redis]>=5.3")
DBOS = ("dbos>=3.4,<4", "psycopg[binary]>=3.1")
_CELERY = ("celery[redis]>=5.5,<6",)
_TASKIQ = ("taskiq>=0.11,<1", "taskiq-redis>=1", "taskiq-aio-pika>=0.4")
_WBENGINE = (
    "acknowledges with the result; a ledger row for each task (Redis, folder: each attempt runs at"
    " most once), or persistent, confirmed requests (RabbitMQ); no prefetch"
)
_POLLS = "polls folders each 10 ms (default: 1 s)"
_TASKIQ_HELPED = "polls results each ms (default: 200 ms)"
_HUEY = "removes messages before execution; no prefetch; results until they are read"
_HUEY_PACKAGES = ("huey>=3,<4", "redis>=5")
_PGQUEUER = ("pgqueuer[asyncpg,cli]>=1.6,<2", "psycopg[binary]>=3.2")
_COMPLETIONS = "tasks write their completion to a table that is not logged"
_LINES, _WARNINGS = "a line for each task; set to warnings", "warnings"

SYSTEMS = (
    System(
        "wbengine", "wbengine", "wbengine", (), (*BROKERS, *LOCALS),
        _WBENGINE + "; an executor for each flow",
        peer=False, log=_LINES,
    ),
    System(
        "wbengine-shared", "wbengine, shared executor", "wbengine", (), BROKERS,
        "as wbengine; one executor for all flows",
        variant="shared", peer=False, log=_LINES,
    ),
    System(
        "wbengine-ledger", "wbengine, ledger in Redis", "wbengine", (), ("amqp",),
        "as wbengine; a ledger row for each task (each attempt runs at most once), requests are not"
        " persistent: the engine resends those that the broker loses",
        variant="ledger", peer=False, helped="ledger=redis://... on both sides", log=_LINES,
    ),
    System(
        "wbengine-transient", "wbengine, requests in memory", "wbengine", (), ("amqp",),
        "as wbengine, without a ledger; requests are not persistent: if the broker loses one, a"
        " task that is not idempotent can fail with WorkerLost",
        variant="transient", peer=False, helped="broker_persistent=False", log=_LINES,
    ),
    System(
        "wbengine-keys", "wbengine, one key", "wbengine", (), ("redis", "amqp"),
        "as wbengine; all messages are signed and verified (HMAC-SHA256)",
        variant="keys", peer=False, helped="WBENGINE_KEYS of one file", log=_LINES, judged=False,
    ),
    System(
        "wbengine-roles", "wbengine, a key for each role", "wbengine", (), ("redis", "amqp"),
        "as wbengine; all messages are signed and verified (Ed25519)",
        variant="roles", peer=False, helped="WBENGINE_KEYS of two files", log=_LINES, judged=False,
    ),
    System(
        "kombu", "kombu alone (echo)", "kombu", ("kombu[redis]>=5.3",), WIRES,
        "acknowledges after the reply; persistent messages, no confirms; unlimited prefetch; runs"
        " and stores nothing",
        slots="1 loop", peer=False, helped=_POLLS, log="nothing",
    ),
    System(
        "taskflow", "TaskFlow", "taskflow", TASKFLOW, (*WIRES, *LOCALS),
        "acknowledges before execution; transient queues, no confirms; unlimited prefetch",
        helped=_POLLS, log=_WARNINGS,
    ),
    System(
        "celery-prefork", "Celery, prefork", "celery", _CELERY, WIRES,
        "acknowledges before execution; persistent messages, no confirms; prefetch 4 for each"
        " process; results in Redis for a day, over RabbitMQ by rpc, else in files",
        variant="prefork", slots="4 processes", helped=_POLLS, log=_WARNINGS,
    ),
    System(
        "celery-threads", "Celery, threads", "celery", _CELERY, WIRES,
        "as prefork", variant="threads", helped="as prefork", log=_WARNINGS,
    ),
    System(
        "dramatiq", "Dramatiq", "dramatiq", ("dramatiq[rabbitmq,redis]>=2,<3",), ("redis", "amqp"),
        "acknowledges after execution; persistent messages, no confirms; prefetch 2 for each"
        " thread; results, off by default, in Redis for 10 minutes",
        slots="1 process, 4 threads", log="that it begins and ends",
    ),
    System(
        "huey", "Huey", "huey", _HUEY_PACKAGES, ("redis", "filesystem"),
        _HUEY,
        helped="polls results each 1 to 2 ms (default: from 50 ms), folders each 10 ms (default:"
        " from 100 ms)",
        log=_LINES,
    ),
    System(
        "huey-notify", "Huey, notifying", "huey", _HUEY_PACKAGES, ("redis",), "as Huey",
        variant="notify",
        helped="notify_result=True: Redis notifies the caller of results",
        log=_LINES, judged=False,
    ),
    System(
        "taskiq", "Taskiq (stream)", "taskiq", _TASKIQ, ("redis", "amqp"),
        "acknowledges after the result is stored; prefetch 100 (stream) or 10 (RabbitMQ, persistent"
        " and confirmed messages); results in Redis without expiry",
        slots="1 process, 4 at once", helped=_TASKIQ_HELPED, log=_LINES,
    ),
    System(
        "taskiq-list", "Taskiq (list)", "taskiq", _TASKIQ, ("redis",),
        "removes messages before execution; results in Redis without expiry", variant="list",
        slots="1 process, 4 at once", helped=_TASKIQ_HELPED, log=_LINES,
    ),
    System(
        "rq", "RQ", "rq", ("rq>=2,<3",), ("redis",),
        "moves messages to a list of running jobs; a process for each job; results in Redis for"
        " 500 s",
        slots="4 workers", log=_LINES,
    ),
    System(
        "dbos", "DBOS queues", "dbos", DBOS, ("postgresql",),
        "a row for each workflow, which is kept; the worker polls the queue, the caller the result",
        helped="polls queue and results each 5 ms (default: 1 s); enqueues many workflows in one"
        " transaction",
        log=_LINES,
    ),
    System(
        "procrastinate", "Procrastinate (no results)", "procrastinate",
        ("procrastinate>=3.10,<4", "psycopg[binary,pool]>=3.2"), ("postgresql",),
        "a row for each job, which is kept, and events; the worker listens; " + _COMPLETIONS,
        slots="4 at once",
        helped="jobs that are deferred together; 8 connections (default: 4)",
        log=_LINES, judged=False,
    ),
    System(
        "pgqueuer", "PgQueuer (no results)", "pgqueuer", _PGQUEUER, ("postgresql",),
        "a row for each job until it ends, and log rows; the worker listens; " + _COMPLETIONS,
        slots="4 at once",
        helped="jobs that are enqueued together, its settings for autovacuum",
        log="nothing", judged=False,
    ),
    System(
        "pgqueuer-batches", "PgQueuer, batches (no results)", "pgqueuer", _PGQUEUER,
        ("postgresql",), "as PgQueuer, without a limit of jobs that run at a time",
        variant="batches", slots="unlimited",
        helped="as PgQueuer; batches of 100 (default: 10)", log="nothing", judged=False,
    ),
)  # fmt: skip

NAMES = tuple(system.name for system in SYSTEMS)
#: Names that can be requested.
KNOWN = tuple(dict.fromkeys([*(system.driver for system in SYSTEMS), *NAMES]))


def matching_systems(names: Collection[str]) -> list[System]:
    """Return the systems with these names. The name of a driver means all its systems."""
    return [
        system
        for system in SYSTEMS
        if system.name in names or (system.driver in names and system.driver not in NAMES)
    ]


def pythons(
    chosen: Collection[System], own: str, ensure: Callable[..., str | None]
) -> dict[str, str]:
    """Return the interpreter of each system by name, without those that cannot be installed.

    :param ensure: `ensure(name, *requirements)` installs them, or reports the reason and returns
        None.
    """
    by_driver: dict[str, str | None] = {}
    for system in chosen:
        if system.driver not in by_driver:
            by_driver[system.driver] = (
                ensure(system.driver, *system.requirements) if system.requirements else own
            )
    return {system.name: python for system in chosen if (python := by_driver[system.driver])}
