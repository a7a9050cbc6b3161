"""Lists of flows, a page at a time; each function is part of a transaction of its caller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine import states
from wbengine._sql import dialects
from wbengine.persistence import base, history, listing, models
from wbengine.persistence.backends.sql import rows, tables

__all__ = ["page"]

_FLOWS: Final = tables.FLOWS.name
_BOOKS: Final = tables.BOOKS.name

#: Where in a text another one begins, from 1 on; 0: nowhere.
_POSITION: Final[Mapping[str, str]] = {
    dialects.SQLITE: "instr({0}, {1})",
    dialects.MYSQL: "INSTR({0}, {1})",
    dialects.POSTGRESQL: "strpos({0}, {1})",
}
#: Whether a flow has a tag, given the place of its key and its value.
_TAG: Final[Mapping[str, str]] = {
    dialects.SQLITE: "json_valid(f.meta) AND json_extract(f.meta, {0}) = {1}",
    dialects.MYSQL: "JSON_VALID(f.meta) AND JSON_UNQUOTE(JSON_EXTRACT(f.meta, {0})) = {1}",
    dialects.POSTGRESQL: "CAST(f.meta AS json) -> 'tags' ->> {0} = {1}",
}
_COUNTS: Final = sa.text(
    f"SELECT flow_uuid, state, COUNT(*) FROM {tables.ATOMS.name}"
    " WHERE flow_uuid IN :uuids AND kind = :task AND name <> :injector GROUP BY flow_uuid, state"
).bindparams(sa.bindparam("uuids", expanding=True))


def page(connection: sa.Connection, query: listing.Query) -> base.Page:
    """The flows that `query` asks for: one statement for their rows, and one for the counts."""
    if query.states is not None and not query.states:
        return base.Page([], None)
    statement, told = _statement(connection.dialect.name, query)
    found = [dict(row) for row in connection.execute(statement, told).mappings()]
    listed = found[: query.limit]
    counts: dict[str, dict[str, int]] = {row["uuid"]: {} for row in listed}
    if listed:
        asked = {"uuids": list(counts), "task": models.TaskDetail.kind, "injector": models.INJECTOR}
        for uuid, state, count in connection.execute(_COUNTS, asked):
            of_flow, state = counts[uuid], state or states.PENDING
            of_flow[state] = of_flow.get(state, 0) + count
    after = None
    if len(found) > len(listed):
        after = str(listing.Place(listed[-1]["created"], listed[-1]["id"]))
    return base.Page([_row(row, counts[row["uuid"]]) for row in listed], after)


def _statement(dialect: str, query: listing.Query) -> tuple[sa.TextClause, dict[str, Any]]:
    """Flows in several states are those in each of them, put together: each list has an index."""
    now = dialects.now(dialect)
    conditions, told = _conditions(dialect, query)
    order = "DESC" if query.newest_first else "ASC"
    parts = [
        "SELECT f.id, f.uuid, f.name, f.state, f.meta, f.more, f.created, f.updated, f.lease_owner,"
        f" f.lease_until - {now} AS remaining, f.book_uuid, b.name AS book_name"
        f" FROM {_FLOWS} f JOIN {_BOOKS} b ON b.uuid = f.book_uuid"
        f" WHERE {' AND '.join([state, *conditions])}"
        f" ORDER BY f.created {order}, f.id {order} LIMIT :most"
        for state in _wanted(query)
    ]
    text = parts[0]
    if len(parts) > 1:
        union = (f"SELECT * FROM ({part}) AS part{n}" for n, part in enumerate(parts))
        text = f"{' UNION ALL '.join(union)} ORDER BY created {order}, id {order} LIMIT :most"
    return sa.text(text), {**told, "most": query.limit + 1}


def _wanted(query: listing.Query) -> list[str]:
    """A condition for each of the states that are asked for."""
    if query.states is None:
        return ["1 = 1"]
    never = ["f.state IS NULL"] if states.PENDING in query.states else []
    # They are words that are known.
    return [f"f.state = '{state}'" for state in sorted(set(query.states))] + never


def _conditions(dialect: str, query: listing.Query) -> tuple[list[str], dict[str, Any]]:
    """What is asked of a flow besides its state, and the values in that."""
    conditions, told = list[str](), dict[str, Any]()
    if query.name is not None:
        conditions.append(f"{_POSITION[dialect].format('f.name', ':name')} > 0")
        told["name"] = rows.kept(query.name)
    if query.text is not None:
        begins = "substr(f.uuid, 1, :text_length) = :text"
        conditions.append(f"({_POSITION[dialect].format('f.name', ':text')} > 0 OR {begins})")
        told |= {"text": rows.kept(query.text), "text_length": len(query.text)}
    for number, (key, value) in enumerate((query.tags or {}).items()):
        conditions.append(_TAG[dialect].format(f":key{number}", f":tag{number}"))
        told |= {f"key{number}": _tag_path(dialect, key), f"tag{number}": rows.kept(value)}
    if query.since is not None:
        conditions.append("f.created >= :since")
        told["since"] = query.since
    if query.book is not None:
        conditions.append("f.book_uuid = :book")
        told["book"] = query.book
    if query.uuid is not None:
        conditions.append("substr(f.uuid, 1, :length) = :uuid")
        told |= {"uuid": query.uuid, "length": len(query.uuid)}
        if dialect != dialects.POSTGRESQL:  # there texts may be in the order of a language
            conditions.append("f.uuid >= :uuid AND f.uuid < :above")
            told["above"] = f"{query.uuid}\U0010ffff"
    if query.after is not None:
        sign = "<" if query.newest_first else ">"
        conditions.append(
            f"(f.created {sign} :moment OR (f.created = :moment AND f.id {sign} :number))"
        )
        told |= {"moment": query.after.created, "number": query.after.tie}
    return conditions, told


def _tag_path(dialect: str, key: str) -> str:
    return key if dialect == dialects.POSTGRESQL else f'$.tags."{key}"'


def _row(row: Mapping[str, Any], counts: Mapping[str, int]) -> base.FlowRow:
    more, meta = _parsed(row["more"]), _parsed(row["meta"])
    held = row["lease_owner"] is not None and row["remaining"] > 0
    return base.FlowRow(
        row["uuid"],
        more.get("name", row["name"]),
        row["book_uuid"],
        row["book_name"],
        row["state"] or states.PENDING,
        row["created"] or None,
        row["updated"],
        counts,
        row["lease_owner"] if held else None,
        _error(row["state"], more),
        listing.tags_of(meta.get(models.TAGS)),
    )


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):  # who reads the flow hears of that
        return {}
    return found if isinstance(found, dict) else {}


def _error(state: str | None, more: Mapping[str, Any]) -> str | None:
    try:
        return history.error(state, tuple(models.Change(*c) for c in more.get("history", ())))
    except TypeError:
        return None
