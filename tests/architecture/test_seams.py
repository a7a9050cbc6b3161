"""Black-box suites import each part of the package only through its adapter."""

from __future__ import annotations

import pathlib

from . import imports

TESTS = imports.ROOT / "tests"
SUITES = ("simulation", "property", "contract", "crashing", "chaos", "fleet", "hostile")

#: Adapter in `tests/seams` -> modules, with their submodules, that only this adapter may import
#: among these suites.
SEAMS: dict[str, tuple[str, ...]] = {
    "scheduling": (
        "wbengine._runtime.compiler",
        "wbengine._runtime.decisions",
        "wbengine._runtime.node_states",
        "wbengine._runtime.plan",
        "wbengine._runtime.retry_decisions",
        "wbengine._runtime.reverting",
        "wbengine._runtime.scheduler",
    ),
    "ledgers": (
        "wbengine.engines.worker_based.ledger",
        "wbengine.transports._folder.folder_ledger",
        "wbengine.transports._ledger",
        "wbengine.transports._redis.redis_ledger",
        "wbengine.transports._sql.sql_ledger",
        "wbengine.transports._table_ledger",
    ),
    "server": (
        "wbengine.engines.worker_based.endpoint",
        "wbengine.engines.worker_based.server",
        "wbengine.engines.worker_based._worker_side",
    ),
    "stores": (
        "wbengine.persistence._history",
        "wbengine.persistence.backends._directory",
        "wbengine.persistence.backends._memory",
        "wbengine.persistence.backends._sql",
        "wbengine.persistence._lease_renewer",
        "wbengine.persistence._leases",
        "wbengine.persistence._owners",
        "wbengine.persistence._trees",
        "wbengine.persistence._writer",
    ),
    "tracker": (
        "wbengine.engines.worker_based._discovery",
        "wbengine.engines.worker_based._requests",
        "wbengine.engines.worker_based.types",
    ),
    "transports": tuple(
        f"wbengine.transports.{name}"
        for name in (
            "_amqp.amqp_socket",
            "_amqp.amqp_frames",
            "_folder.fifos",
            "_encoding",
            "_folder.files",
            "_folder.folder_tables",
            "_nudge",
            "_redis.redis_link",
            "_redis.redis_scripts",
            "_routing",
            "_amqp.amqp_kind",
            "_broker",
            "_folder.folder_broker",
            "_memory.memory_broker",
        )
    ),
}


def reaching(modules: tuple[str, ...], tests: pathlib.Path = TESTS) -> list[str]:
    """Return the imports of these modules by the suites, without imports for type checking."""
    found, sources = imports.modules(imports.ROOT / "wbengine"), dict[str, pathlib.Path]()
    missing = [module for module in modules if module not in found]
    assert not missing, f"{missing} are gone: correct SEAMS in tests/architecture/test_seams.py"
    for suite in SUITES:
        assert any((tests / suite).rglob("*.py")), f"tests/{suite} has no modules"
        inside = imports.modules(tests / suite)
        sources.update({f"tests.{name}": path for name, path in inside.items()})
    return [
        str(edge)
        for edge in imports.imports({**found, **sources}, sources)
        if any(edge.target == module or edge.target.startswith(f"{module}.") for module in modules)
    ]


def test_suites_import_a_part_only_through_its_adapter() -> None:
    for seam, modules in SEAMS.items():
        assert (TESTS / "seams" / f"{seam}.py").is_file()
        assert not reaching(modules), f"use tests/seams/{seam}.py in place of these"


def test_direct_import_of_a_part_is_found(tmp_path: pathlib.Path) -> None:
    for suite in SUITES:
        (tmp_path / suite).mkdir()
        (tmp_path / suite / "test_it.py").write_text("from wbengine import engines\n")
    assert reaching(SEAMS["scheduling"], tmp_path) == []
    late = "def late():\n    from wbengine._runtime import plan\n"
    (tmp_path / "chaos" / "test_it.py").write_text(late)
    [found] = reaching(SEAMS["scheduling"], tmp_path)
    assert "tests.chaos.test_it imports wbengine._runtime.plan" in found
