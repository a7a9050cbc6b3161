"""Names of message headers outside the package `messages`."""

from __future__ import annotations

import ast

from wbengine.engines.worker_based._messages import headers

from . import imports

PACKAGE = "wbengine.engines.worker_based._messages"

#: Modules that name headers themselves, with the reason.
EXCEPTIONS = {
    # The brokers label each request with its row, and import nothing of the wire.
    "wbengine.transports._encoding",
}

NAMES = {
    value
    for name, value in vars(headers).items()
    if name.startswith("WBE_") and name not in {"WBE_ASK"}  # Also the type of a message.
}


def test_header_names_are_used_only_in_messages() -> None:
    found = []
    for module, path in imports.modules(imports.ROOT / "wbengine").items():
        if module.startswith(PACKAGE) or module in EXCEPTIONS:
            continue
        text = path.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text)) if any(name in text for name in NAMES) else ()
        constants = (node for node in nodes if isinstance(node, ast.Constant))
        names = (each for each in constants if each.value in NAMES)
        found += [f"{path}:{each.lineno}: {each.value}" for each in names]
    assert found == []


def test_only_messages_import_the_names_of_headers() -> None:
    modules = imports.modules(imports.ROOT / "wbengine")
    naming = {
        module: path
        for module, path in modules.items()
        if "headers" in path.read_text(encoding="utf-8")
    }
    edges = imports.imports(modules, naming)
    edges = [each for each in edges if each.target == f"{PACKAGE}.headers"]
    assert edges
    outside = (each for each in edges if not each.source.startswith(PACKAGE))
    assert [str(each) for each in outside] == []
