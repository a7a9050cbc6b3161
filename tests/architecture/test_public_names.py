"""Modules can be imported, and contain the names that programs use."""

from __future__ import annotations

import importlib
import operator
import os

import pytest

from wbengine.engines.worker_based import proxy

from . import imports

#: Module -> names that programs use, and that no test compares with `public_api.txt` or TaskFlow.
PUBLIC = {
    "wbengine.backoff": "Backoff",
    "wbengine.engines.worker_based.endpoint": "Endpoint.execute Endpoint.revert",
    "wbengine.engines.worker_based.executor": "WorkerTaskExecutor.start WorkerTaskExecutor.stop",
    "wbengine.engines.worker_based.protocol": "Request.from_dict",
    "wbengine.engines.worker_based.proxy": (
        "Proxy.connection_details Proxy.consume_shared Proxy.flush Proxy.send Proxy.start"
        " Proxy.stop Proxy.wait"
    ),
    "wbengine.engines.worker_based.types": (
        "ProxyWorkerFinder.reset ProxyWorkerFinder.wait_for_workers"
    ),
    "wbengine.engines.worker_based.worker": "Worker.banner Worker.run Worker.stop Worker.wait",
    "wbengine.jobs.base": "FlowBoard",
    "wbengine.persistence.backends.impl_dir": "Connection",
    "wbengine.persistence.backends.impl_memory": "Connection",
    "wbengine.persistence.backends.impl_sqlalchemy": "Connection",
    "wbengine.persistence.models": "ItemDetail",
    "wbengine.pools": "PoolCall",
    "wbengine.task": "LOG",
    "wbengine.time_limits": "TimeLimit UNLIMITED read",
    "wbengine.types.graph": "DiGraph",
    "wbengine.types.timing": "StopWatch",
    "wbengine.types.tree": "Node",
    "wbengine.utils.async_utils": "make_completed_future",
    "wbengine.utils.misc": "as_int capture_failure clamp decode_json parse_uri",
    "wbengine.version": "version_string",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_exist(module: str) -> None:
    operator.attrgetter(*PUBLIC[module].split())(importlib.import_module(module))


def test_proxy_retries_without_limit_by_default() -> None:
    assert proxy.Proxy.DEFAULT_RETRY_OPTIONS == {
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


@pytest.mark.parametrize("package", ["wbengine.dashboard", "wbengine.interop.celery"])
def test_lazy_names_can_be_imported(package: str) -> None:
    imported = importlib.import_module(package)
    for name in imported.__all__:
        assert getattr(imported, name) is not None, name
