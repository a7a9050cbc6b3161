"""Directives that write a part of the reference from the code that it describes.

.. code-block:: text

   .. schema:: MODULE:NAME      a JSON Schema
   .. constants:: MODULE [...]  a table of the constants of a module and what their comments say;
                                with arguments, of those only whose names begin so
   .. tables:: MODULE:NAME      the tables of a `sqlalchemy.MetaData`
   .. metrics:: MODULE:NAME     a mapping of names of metrics to what describes them
   .. settings:: MODULE         the settings of the command line, from `settings_schema`
   .. options:: MODULE:CLASS    a table of the list of options in the docstring of a class
   .. transport_options:: MODULE:CLASS [BEGINNING ...]
                                a table of the fields of a dataclass, except those that begin so
   .. methods:: MODULE:CLASS [NAME ...]
                                a table of the public methods of a class, except these
   .. scripts:: FOLDER          a table of the Lua scripts in a folder of the package
   .. operations:: MODULE:NAME  a table of the operations; NAME returns the path of each
   .. roles:: MODULE:NAME       a table of the operations of each role in a tuple
   .. formats:: MODULE:NAME     a table of a tuple of `wbengine._text.data_formats.Format`
   .. public_names:: KIND       the entries of a kind in the list of the public interface
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import wbengine
from wbengine.operations import _operation


def named(place: str) -> Any:
    """Return the object at `MODULE:NAME`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def table(header: Sequence[str], widths: Sequence[int], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a `list-table`."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {' '.join(map(str, widths))}"]
    lines.append("")
    for row in (header, *rows):
        for number, cell in enumerate(row):
            lines.append(f"   {'  ' if number else '* '}- {cell}".rstrip())
    return [*lines, ""]


def schema(arguments: Sequence[str]) -> list[str]:
    text = json.dumps(named(arguments[0]), indent=2)
    return [".. code-block:: json", "", *(f"   {line}" for line in text.splitlines()), ""]


def constants(arguments: Sequence[str]) -> list[str]:
    """Those with a comment of their own; one without shares that of the one before."""
    module, *beginnings = arguments
    found = importlib.import_module(module)
    analyzer = ModuleAnalyzer.for_module(module)
    analyzer.analyze()
    told = {name: " ".join(text) for (_, name), text in analyzer.attr_docs.items()}
    rows, last = [], ""
    for name, value in vars(found).items():
        if not name.isupper() or not isinstance(value, str | int | float | tuple):
            continue
        if beginnings and not name.startswith(tuple(beginnings)):
            continue
        last = told.get(name, last)
        rows.append((f"``{value}``", last.strip()))
    return table(("name", "meaning"), (25, 75), rows)


def tables(arguments: Sequence[str]) -> list[str]:
    lines = []
    for each in named(arguments[0]).sorted_tables:
        rows = []
        for column in each.columns:
            notes = []
            if column.primary_key:
                notes.append("primary key")
            if not column.nullable and not column.primary_key:
                notes.append("not null")
            notes += [f"→ ``{key.target_fullname}``" for key in column.foreign_keys]
            rows.append((f"``{column.name}``", f"``{_kind(column.type)}``", ", ".join(notes)))
        lines += [f"``{each.name}``", ""]
        lines += [f"   {line}".rstrip() for line in table(("column", "type", ""), (3, 2, 4), rows)]
    return lines


def _kind(kind: Any) -> str:
    return str(kind.compile()) if hasattr(kind, "compile") else str(kind)


def metrics(arguments: Sequence[str]) -> list[str]:
    rows = [
        (f"``{name}``", each.kind, " ".join(f"``{label}``" for label in each.labels), each.help)
        for name, each in named(arguments[0]).items()
    ]
    return table(("name", "kind", "labels", "meaning"), (36, 10, 18, 36), rows)


def settings(arguments: Sequence[str]) -> list[str]:
    module = importlib.import_module(arguments[0])
    rows = []
    for name, setting in module.SETTINGS.items():
        spellings = ", ".join(f"``{each}``" for each in setting.spellings)
        rows.append((f"``{name}``", spellings, f"``{module.VARIABLES[name][0]}``",
                     setting.schema["description"].replace("`", "``")))  # fmt: skip
    return table(("setting", "option", "variable", "meaning (default)"), (14, 18, 26, 42), rows)


_OPTION = re.compile(r"^- ((?:`\w+`(?:, )?)+)(?: \((.+?)\))?: (.+)$")


def options(arguments: Sequence[str]) -> list[str]:
    """Read lines such as "- `name` (default): meaning"; an indented line continues the one before.

    :raises ValueError: if a line of the list has another form.
    """
    text = inspect.getdoc(named(arguments[0])) or ""
    rows = []
    for item in re.findall(r"^- .*(?:\n  .*)*", text, flags=re.MULTILINE):
        if (match := _OPTION.match(" ".join(item.split()))) is None:
            raise ValueError(f"{arguments[0]}: option must be described as `name`: ..., got {item}")
        rows.append((match[1], match[2] or "", match[3][0].upper() + match[3][1:]))
    return table(("Option", "Default", "Meaning"), (26, 14, 60), rows)


def transport_options(arguments: Sequence[str]) -> list[str]:
    place, *omitted = arguments
    rows = [
        (f"``{each.name}``", f"``{each.default}``", each.metadata["doc"])
        for each in dataclasses.fields(named(place))
        if not each.name.startswith(tuple(omitted))
    ]
    return table(("Option", "Default", "Meaning"), (30, 14, 56), rows)


def methods(arguments: Sequence[str]) -> list[str]:
    """Mark the methods that must be implemented, under their names or with an underscore."""
    place, *omitted = arguments
    rows, required = [], getattr(named(place), "__abstractmethods__", frozenset())
    for name, each in vars(named(place)).items():
        if name.startswith("_") or name in omitted or not inspect.isfunction(each):
            continue
        text = " ".join((inspect.getdoc(each) or "").split()).replace("`", "``")
        text = re.sub(r":raises ([\w, ]+):", r"Raises \1", text)
        text = re.sub(r":param (\w+):", r"``\1``:", text).replace(":returns:", "Returns:")
        inner = getattr(named(place), f"_{name}", None)
        must = f"``{name}``" if name in required else ""
        must = _call(f"_{name}", inner) if f"_{name}" in required else must
        rows.append((_call(name, each), must, text))
    return table(("Method", "Required", "Meaning"), (30, 20, 50), rows)


def _call(name: str, function: Any) -> str:
    parameters = [word for word in inspect.signature(function).parameters if word != "self"]
    return f"``{name}({', '.join(parameters)})``"


def scripts(arguments: Sequence[str]) -> list[str]:
    """Read the last paragraphs of the comments: the guarantees."""
    rows = []
    for path in sorted(Path(wbengine.__file__).parent.joinpath(arguments[0]).glob("*.lua")):
        comment = path.read_text(encoding="utf-8").partition("\n\n")[0]
        guarantee = comment.split("\n--\n")[-1].replace("-- ", "")
        rows.append((f"``{path.stem}``", " ".join(guarantee.split())))
    return table(("script", "guarantee"), (22, 78), rows)


def operations(arguments: Sequence[str]) -> list[str]:
    path_of = named(arguments[0])
    rows = []
    for each in _operation.table().values():
        names = (name for name in each.parameters if name != each.target)
        parameters = ", ".join(f"``{name}``" for name in names)
        rows.append((f"``POST {path_of(each)}``", each.roles, parameters, each.summary))
    return table(("path", "role", "parameters", "meaning"), (36, 10, 22, 32), rows)


def roles(arguments: Sequence[str]) -> list[str]:
    """List the operations of each role."""
    rows = []
    for role in named(arguments[0]):
        names = [f"``{each.name}``" for each in _operation.table().values() if each.role == role]
        for each in _operation.table().values():
            others = [f"``{name}``" for name, it in each.parameters.items() if it.role == role]
            names += [f"``{each.name}`` with {' or '.join(others)}"] if others else []
        if names:
            rows.append((f"``{role}``", ", ".join(names)))
    return table(("role", "operations"), (16, 84), rows)


def formats(arguments: Sequence[str]) -> list[str]:
    module = importlib.import_module(arguments[0].partition(":")[0])
    analyzer = ModuleAnalyzer.for_module(module.__name__)
    analyzer.analyze()
    names = {id(value): name for name, value in vars(module).items()}
    rows = []
    for each in named(arguments[0]):
        content = " ".join(analyzer.attr_docs["", names[id(each)]]).strip()
        rows.append((each.name, content, str(each.written), ", ".join(map(str, each.read))))
    return table(("Format", "Content", "Version written", "Versions read"), (14, 54, 16, 16), rows)


PUBLIC_NAMES = Path(wbengine.__file__).parents[1] / "tests" / "architecture" / "public_api.txt"


def public_names(arguments: Sequence[str]) -> list[str]:
    lines = PUBLIC_NAMES.read_text(encoding="utf-8").splitlines()
    entries = [line.partition(" ") for line in lines]
    return [f"- ``{name}``" for kind, _, name in entries if kind == arguments[0]]


def directive(write: Callable[[Sequence[str]], list[str]]) -> type[SphinxDirective]:
    class Written(SphinxDirective):
        required_arguments = 1
        optional_arguments = 20

        def run(self) -> list[nodes.Node]:
            lines = write(self.arguments)
            inner = nodes.Element()
            self.state.nested_parse(StringList(lines, source=write.__name__), 0, inner)
            return list(inner.children)

    return Written


def setup(app: Sphinx) -> dict[str, Any]:
    for write in (
        *(schema, constants, tables, metrics, settings, options),
        *(transport_options, methods, scripts, operations, roles, formats, public_names),
    ):
        app.add_directive(write.__name__, directive(write))
    return {"parallel_read_safe": True}
