"""Public names, signatures and members that users of TaskFlow rely on."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from typing import Any

import pytest

from . import imports

#: Module -> names that it must contain.
PUBLIC: dict[str, tuple[str, ...]] = {
    "wbengine.exceptions": (
        "TaskFlowException",
        "WrappedFailure",
        "NotFound",
        "RequestTimeout",
        "NotAFlow",
        "NotImplementedError",
    ),
    "wbengine.states": ("SUCCESS", "REVERTED", "PENDING", "RUNNING", "check_task_transition"),
    "wbengine.types.failure": ("Failure", "allow"),
    "wbengine.types.codec": ("allow", "dumps", "loads"),
    "wbengine.types.notifier": ("Notifier", "RestrictedNotifier"),
    "wbengine.types.entity": ("Entity",),
    "wbengine.atom": ("Atom",),
    "wbengine.task": (
        "LOG",
        "Task",
        "FunctorTask",
        "Map",
        "MapFunctorTask",
        "ReduceFunctorTask",
        "task",
    ),
    "wbengine.retry": (
        "Retry",
        "AlwaysRevert",
        "AlwaysRevertAll",
        "Times",
        "ForEach",
        "ParameterizedForEach",
        "History",
        "Backoff",
        "RETRY",
        "REVERT",
        "REVERT_ALL",
    ),
    "wbengine.backoff": ("Backoff",),
    "wbengine.flow": ("Flow",),
    "wbengine.deciders": ("Depth", "Join"),
    "wbengine.patterns.linear_flow": ("Flow",),
    "wbengine.patterns.unordered_flow": ("Flow",),
    "wbengine.patterns.graph_flow": ("Flow", "TargetedFlow"),
    "wbengine.storage": ("Storage", "META_PROGRESS", "META_PROGRESS_DETAILS"),
    "wbengine.pools": ("ThreadPool", "ProcessPool", "SoloPool", "ExternalPool", "PoolCall"),
    "wbengine.running": ("Request",),
    "wbengine.time_limits": ("TimeLimit", "UNLIMITED", "read"),
    "wbengine.engines.worker_based.executor": ("WorkerTaskExecutor",),
    "wbengine.engines.worker_based._requests.options": ("RequestOptions",),
    "wbengine.engines.worker_based.ledger": ("open_ledger", "LEDGER_VARIABLE"),
    "wbengine.engines.worker_based._messages.worker_life": ("Life", "STATES"),
    "wbengine.engines.worker_based._worker_side.reporting": ("ExceptionHandler", "FailedRequest"),
    "wbengine.engines.worker_based._discovery.snapshots": (
        "RequestSnapshot",
        "WorkerSnapshot",
        "STATES",
    ),
    "wbengine.engines.worker_based.ledger._sql": ("SQLLedger",),
    "wbengine.engines.worker_based.ledger._redis": ("RedisLedger",),
    "wbengine.transports._redis": ("RedisBroker", "place"),
    "wbengine.transports._kinds": (
        "BrokerKind",
        "KombuKind",
        "Target",
        "TransportKind",
        "check_names",
        "kombu_target",
        "resolve",
    ),
    "wbengine.persistence.backends": ("fetch", "backend", "BACKEND_NAMESPACE"),
    "wbengine.persistence.backends._directory": ("DirectoryBackend", "DirectoryConnection"),
    "wbengine.persistence.backends._sql": ("SQLBackend", "SQLConnection"),
    "wbengine.persistence.backends.impl_dir": ("Connection", "DirBackend"),
    "wbengine.persistence.backends.impl_memory": ("Connection", "MemoryBackend"),
    "wbengine.persistence.backends.impl_sqlalchemy": ("Connection", "SQLAlchemyBackend"),
    "wbengine.persistence.models": (
        "LogBook",
        "FlowDetail",
        "TaskDetail",
        "RetryDetail",
        "ItemDetail",
    ),
    "wbengine.jobs.base": (
        "Job",
        "JobBoard",
        "FlowBoard",
        "JobBoardIterator",
        "JobPriority",
        "NotifyingJobBoard",
        "POSTED",
        "CLAIMED",
        "REMOVAL",
    ),
    "wbengine.jobs.backends": ("fetch", "backend", "BACKEND_NAMESPACE"),
    "wbengine.jobs.backends.impl_sql": ("SQLJobBoard",),
    "wbengine.jobs.backends.impl_memory": ("MemoryJobBoard",),
    "wbengine.jobs.backends.impl_redis": ("RedisJobBoard",),
    "wbengine.jobs.backends.impl_zookeeper": ("ZookeeperJobBoard",),
    "wbengine.jobs.backends.impl_etcd": ("EtcdJobBoard",),
    "wbengine.conductors.base": ("Conductor",),
    "wbengine.conductors.backends": ("fetch", "CONDUCTOR_NAMESPACE"),
    "wbengine.conductors.backends.impl_blocking": ("BlockingConductor",),
    "wbengine.conductors.backends.impl_executor": ("ExecutorConductor",),
    "wbengine.conductors.backends.impl_nonblocking": ("NonBlockingConductor",),
    "wbengine.listeners.base": (
        "Listener",
        "DumpingListener",
        "DEFAULT_LISTEN_FOR",
        "FINISH_STATES",
    ),
    "wbengine.listeners.logging": ("LoggingListener", "DynamicLoggingListener"),
    "wbengine.listeners.printing": ("PrintingListener",),
    "wbengine.listeners.timing": (
        "DurationListener",
        "PrintingDurationListener",
        "EventTimeListener",
    ),
    "wbengine.listeners.capturing": ("CaptureListener",),
    "wbengine.listeners.claims": ("CheckingClaimListener",),
    "wbengine.listeners.progress": ("ProgressListener",),
    "wbengine.formatters": ("FailureFormatter",),
    "wbengine.logging": ("getLogger", "BLATHER", "TRACE", "DEBUG", "WARN", "NOTSET"),
    "wbengine.version": ("version_string", "version_string_with_package"),
    "wbengine.types.graph": (
        "Graph",
        "DiGraph",
        "OrderedGraph",
        "OrderedDiGraph",
        "merge_graphs",
    ),
    "wbengine.types.latch": ("Latch",),
    "wbengine.types.sets": ("OrderedSet",),
    "wbengine.types.timing": ("Timeout", "StopWatch", "convert_to_timeout"),
    "wbengine.types.tree": ("Node", "FrozenNode"),
    "wbengine.utils.async_utils": ("make_completed_future",),
    "wbengine.utils.misc": ("as_int", "capture_failure", "clamp", "decode_json", "parse_uri"),
    "wbengine.utils.persistence_utils": (
        "create_flow_detail",
        "temporary_flow_detail",
        "temporary_log_book",
    ),
    "wbengine.utils.threading_utils": ("ThreadBundle", "daemon_thread"),
    "wbengine.engines._differences": ("Difference",),
    "wbengine.engines": (
        "load",
        "run",
        "arun",
        "load_from_factory",
        "load_from_detail",
        "flow_from_detail",
        "save_factory_details",
    ),
}

REQUIRED = inspect.Parameter.empty
#: Placeholder for any default value.
SOME: Any = object()
BASE = "wbengine.engines.worker_based."
TRANSPORT = {"url": None, "transport": None, "transport_options": None, "retry_options": None}

LISTEN_FOR = dict.fromkeys(("task_listen_for", "flow_listen_for", "retry_listen_for"), ("*",))

#: "module:callable" -> its parameters in order with their defaults.
SIGNATURES: dict[str, dict[str, Any]] = {
    "wbengine.listeners.base:Listener": {"engine": REQUIRED, **LISTEN_FOR},
    "wbengine.listeners.printing:PrintingListener": {
        "engine": REQUIRED,
        **LISTEN_FOR,
        "stderr": False,
    },
    "wbengine.listeners.logging:LoggingListener": {
        "engine": REQUIRED,
        **LISTEN_FOR,
        "log": None,
        "level": logging.DEBUG,
    },
    "wbengine.listeners.logging:DynamicLoggingListener": {
        "engine": REQUIRED,
        **LISTEN_FOR,
        "log": None,
        "failure_level": logging.WARNING,
        "level": logging.DEBUG,
        "hide_inputs_outputs_of": (),
        "fail_formatter": None,
        "mask_inputs_keys": (),
        "mask_outputs_keys": (),
    },
    "wbengine.listeners.timing:DurationListener": {"engine": REQUIRED},
    "wbengine.listeners.timing:PrintingDurationListener": {"engine": REQUIRED, "printer": None},
    "wbengine.listeners.timing:EventTimeListener": {"engine": REQUIRED, **LISTEN_FOR},
    "wbengine.listeners.capturing:CaptureListener": {
        "engine": REQUIRED,
        **LISTEN_FOR,
        **dict.fromkeys(("capture_flow", "capture_task", "capture_retry"), True),
        **dict.fromkeys(("skip_tasks", "skip_retries", "skip_flows", "values")),
    },
    "wbengine.listeners.claims:CheckingClaimListener": {
        "engine": REQUIRED,
        "job": REQUIRED,
        "board": REQUIRED,
        "owner": REQUIRED,
        "on_job_loss": None,
    },
    "wbengine.formatters:FailureFormatter": {
        "engine": REQUIRED,
        "hide_inputs_outputs_of": (),
        "mask_inputs_keys": (),
        "mask_outputs_keys": (),
    },
    "wbengine.formatters:FailureFormatter.format": {
        "self": REQUIRED,
        "fail": REQUIRED,
        "atom_matcher": REQUIRED,
    },
    "wbengine.persistence.backends.impl_dir:DirBackend": {"conf": SOME},
    "wbengine.persistence.backends.impl_memory:MemoryBackend": {"conf": None},
    "wbengine.persistence.backends.impl_sqlalchemy:SQLAlchemyBackend": {"conf": SOME},
    "protocol:make_an_event": {"new_state": REQUIRED},
    "protocol:build_a_machine": {"freeze": True},
    "protocol:failure_to_dict": {"failure": REQUIRED},
    "protocol:Request": {
        "task": REQUIRED,
        "uuid": REQUIRED,
        "action": REQUIRED,
        "arguments": REQUIRED,
        "timeout": 60,
        "result": SOME,
        "failures": None,
    },
    "protocol:Request.set_result": {"self": REQUIRED, "result": REQUIRED},
    "protocol:Request.transition": {"self": REQUIRED, "new_state": REQUIRED},
    "protocol:Request.transition_and_log_error": {
        "self": REQUIRED,
        "new_state": REQUIRED,
        "logger": None,
    },
    "protocol:Request.from_dict": {"data": REQUIRED, "task_uuid": None},
    "protocol:Response": {"state": REQUIRED},
    "engine:WorkerBasedActionEngine": {
        "flow": REQUIRED,
        "flow_detail": REQUIRED,
        "backend": REQUIRED,
        "options": REQUIRED,
    },
    "dispatcher:Handler": {"process_message": REQUIRED, "validator": None},
    "dispatcher:TypeDispatcher": {"type_handlers": None, "requeue_filters": None},
    "dispatcher:TypeDispatcher.on_message": {
        "self": REQUIRED,
        "data": REQUIRED,
        "message": REQUIRED,
    },
    "endpoint:Endpoint": {"task_cls": REQUIRED},
    "executor:WorkerTaskExecutor": {
        "uuid": REQUIRED,
        "exchange": REQUIRED,
        "topics": REQUIRED,
        "transition_timeout": 60,
        **TRANSPORT,
        "worker_expiry": 60,
    },
    "executor:WorkerTaskExecutor.execute_task": {
        "self": REQUIRED,
        "task": REQUIRED,
        "task_uuid": REQUIRED,
        "arguments": REQUIRED,
        "progress_callback": None,
    },
    "executor:WorkerTaskExecutor.revert_task": {
        "self": REQUIRED,
        "task": REQUIRED,
        "task_uuid": REQUIRED,
        "arguments": REQUIRED,
        "result": REQUIRED,
        "failures": REQUIRED,
        "progress_callback": None,
    },
    "executor:WorkerTaskExecutor.wait_for_workers": {
        "self": REQUIRED,
        "workers": 1,
        "timeout": None,
    },
    "proxy:Proxy": {
        "topic": REQUIRED,
        "exchange": REQUIRED,
        "type_handlers": None,
        "on_wait": None,
        **TRANSPORT,
    },
    "proxy:Proxy.publish": {
        "self": REQUIRED,
        "msg": REQUIRED,
        "routing_key": REQUIRED,
        "reply_to": None,
        "correlation_id": None,
    },
    "worker:Worker": {
        "exchange": REQUIRED,
        "topic": REQUIRED,
        "tasks": REQUIRED,
        "executor": None,
        "threads_count": None,
        **TRANSPORT,
    },
    "worker:Worker.run": {"self": REQUIRED, "display_banner": True, "banner_writer": None},
    "types:TopicWorker": {"topic": REQUIRED, "tasks": REQUIRED, "identity": SOME},
    "types:ProxyWorkerFinder": {
        "uuid": REQUIRED,
        "proxy": REQUIRED,
        "topics": REQUIRED,
        "beat_periodicity": 5,
        "worker_expiry": 60,
    },
    "types:ProxyWorkerFinder.wait_for_workers": {
        "self": REQUIRED,
        "workers": 1,
        "timeout": None,
    },
    "types:ProxyWorkerFinder.process_response": {
        "self": REQUIRED,
        "data": REQUIRED,
        "message": REQUIRED,
    },
    "types:ProxyWorkerFinder.get_worker_for_task": {"self": REQUIRED, "task": REQUIRED},
}

#: "module:Class" -> its other members.
MEMBERS: dict[str, tuple[str, ...]] = {
    "protocol:Message": ("to_dict",),
    "protocol:Notify": ("TYPE", "RESPONSE_SCHEMA", "SENDER_SCHEMA", "to_dict"),
    "protocol:Request": ("TYPE", "SCHEMA", "current_state", "expired", "to_dict"),
    "protocol:Response": ("TYPE", "SCHEMA", "to_dict"),
    "dispatcher:Handler": ("process_message", "validator"),
    "dispatcher:TypeDispatcher": ("type_handlers", "requeue_filters"),
    "endpoint:Endpoint": ("execute", "revert"),
    "executor:WorkerTaskExecutor": ("start", "stop"),
    "proxy:Proxy": (
        "DEFAULT_RETRY_OPTIONS",
        "dispatcher",
        "connection_details",
        "is_running",
        "start",
        "wait",
        "stop",
        "send",
        "flush",
        "consume_shared",
    ),
    "worker:Worker": ("banner", "wait", "stop"),
    "types:ProxyWorkerFinder": (
        "total_workers",
        "messages_processed",
        "maybe_publish",
        "clean",
        "reset",
    ),
}


def find(name: str) -> Any:
    module, _, path = name.partition(":")
    whole = module if module.startswith("wbengine.") else BASE + module
    found: Any = importlib.import_module(whole)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def mismatch(function: Any, expected: dict[str, Any]) -> str | None:
    """Return why calls with the parameters `expected` fail, or None.

    More parameters are allowed if they have defaults.
    """
    parameters = inspect.signature(function).parameters
    positional = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    if positional[: len(expected)] != list(expected):
        return f"takes {positional}, not {list(expected)}"
    for name, default in expected.items():
        if default is SOME and parameters[name].default is REQUIRED:
            return f"{name} has no default"
        if default not in (SOME, REQUIRED) and parameters[name].default != default:
            return f"the default of {name} is {parameters[name].default!r}, not {default!r}"
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in parameters.items():
        more = name not in expected and parameter.kind not in variable
        if more and parameter.default is REQUIRED:
            return f"{name} must be given"
    return None


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_exist(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_accepts_documented_arguments(name: str) -> None:
    assert mismatch(find(name), SIGNATURES[name]) is None


@pytest.mark.parametrize("name", MEMBERS)
def test_class_has_documented_members(name: str) -> None:
    cls = find(name)
    assert [member for member in MEMBERS[name] if not hasattr(cls, member)] == []


def test_message_types_equal_those_of_taskflow() -> None:
    types = [find(f"protocol:{name}").TYPE for name in ("Notify", "Request", "Response")]
    assert types == ["NOTIFY", "REQUEST", "RESPONSE"]
    assert find("protocol:Notify")(topic="t", tasks=["a"]).to_dict() == {
        "topic": "t",
        "tasks": ["a"],
    }
    assert find("protocol:Notify").SENDER_SCHEMA == {
        "additionalProperties": False,
        "type": "object",
    }


def test_retry_options_equal_those_of_taskflow() -> None:
    assert find("proxy:Proxy").DEFAULT_RETRY_OPTIONS == {
        "interval_max": 1,
        "interval_start": 0.1,
        "interval_step": 0.3,
        "max_retries": None,
    }


def test_every_module_can_be_imported() -> None:
    failed = []
    for name, path in imports.modules(imports.ROOT / "wbengine").items():
        if path.name == "__main__.py":
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    assert not failed, os.linesep.join(failed)


@pytest.mark.parametrize(
    "package",
    [
        "wbengine.dashboard",
        "wbengine.engines",
        "wbengine.interop.celery",
        "wbengine.schedules",
        "wbengine.testing",
    ],
)
def test_lazy_names_can_be_imported(package: str) -> None:
    imported = importlib.import_module(package)
    for name in imported.__all__:
        assert getattr(imported, name) is not None, name


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b=1: None, None),
        (lambda a, b=1, c=2, *, d=3, **more: None, None),
        (lambda b, a=1: None, "takes"),
        (lambda a: None, "takes"),
        (lambda a, *, b=1: None, "takes"),
        (lambda a, b=2: None, "default of b"),
        (lambda a=0, b=1: None, None),
        (lambda a, b=1, *, c: None, "c must be given"),
    ],
)
def test_signature_mismatch_is_found(function: Any, reason: str | None) -> None:
    found = mismatch(function, {"a": REQUIRED, "b": 1})
    assert found is None if reason is None else reason in str(found)
