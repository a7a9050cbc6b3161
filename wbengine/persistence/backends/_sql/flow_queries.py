"""Pages of flow lists. Each function runs inside its caller's transaction."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from wbengine import states
from wbengine._sql import dialects
from wbengine.persistence import _history as history
from wbengine.persistence import _listing, _pauses, base, models
from wbengine.persistence.backends._sql import rows, tables
from wbengine.types import _tags

__all__ = ["backlog", "count_children", "page"]

#: Number of rows that one statement reads to search for errors.
_ROWS_PER_READ: Final = 1000

_FLOWS: Final = tables.FLOWS.name
_BOOKS: Final = tables.BOOKS.name
_TAGS: Final = tables.TAGS.name

#: SQL for whether the name of a flow matches a pattern of `_name_pattern`.
_NAME: Final[Mapping[str, str]] = {
    dialects.SQLITE: "f.name GLOB {0}",
    dialects.MYSQL: "f.name REGEXP {0}",
    dialects.POSTGRESQL: "f.name ~ {0}",
}
#: Join that reads the tables in the order of the statement, if the database does not choose it.
_ORDERED_JOIN: Final[Mapping[str, str]] = {
    dialects.SQLITE: "CROSS JOIN",
    dialects.MYSQL: "STRAIGHT_JOIN",
    dialects.POSTGRESQL: "JOIN",
}
#: The `meta` of a flow as JSON of PostgreSQL, whose functions refuse texts with a zero character.
_META: Final = r"CAST(REPLACE(f.meta, '\u0000', '\ufffd') AS json)"
#: SQL for the kind of engine in the `meta` of a flow; NULL if there is none.
_ENGINE: Final[Mapping[str, str]] = {
    dialects.SQLITE: "CASE WHEN json_valid(f.meta) AND json_type(f.meta, '$.engine') = 'text'"
    " THEN json_extract(f.meta, '$.engine') END",
    dialects.MYSQL: "CASE WHEN JSON_VALID(f.meta)"
    " AND JSON_TYPE(JSON_EXTRACT(f.meta, '$.engine')) = 'STRING'"
    " THEN JSON_UNQUOTE(JSON_EXTRACT(f.meta, '$.engine')) END",
    dialects.POSTGRESQL: f"CASE WHEN json_typeof({_META} -> 'engine') = 'string'"
    f" THEN {_META} ->> 'engine' END",
}
#: SQL for the queue in the `meta` of a flow that was submitted; NULL if it was not.
_QUEUE: Final[Mapping[str, str]] = {
    dialects.SQLITE: "CASE WHEN json_valid(f.meta) AND json_type(f.meta, '$.submitted') = 'object'"
    " THEN COALESCE(json_extract(f.meta, '$.submitted.queue'), '{0}') END",
    dialects.MYSQL: "CASE WHEN JSON_VALID(f.meta)"
    " AND JSON_TYPE(JSON_EXTRACT(f.meta, '$.submitted')) = 'OBJECT'"
    " THEN COALESCE(JSON_UNQUOTE(JSON_EXTRACT(f.meta, '$.submitted.queue')), '{0}') END",
    dialects.POSTGRESQL: f"CASE WHEN json_typeof({_META} -> 'submitted') = 'object'"
    f" THEN COALESCE({_META} -> 'submitted' ->> 'queue', '{{0}}') END",
}
#: Start of the `StepNote` in the `meta` of a step of a workflow. Uuid and attempt follow.
_STEP: Final = f'"{models.STEP}":{{"workflow":"'
_WORKFLOW: Final = re.compile(r'([^"]+)","attempt":(\d+),')
#: Function of SQL that returns the position of a text in another one, or 0.
_POSITION: Final[Mapping[str, str]] = {
    dialects.SQLITE: "instr",
    dialects.MYSQL: "instr",
    dialects.POSTGRESQL: "strpos",
}
#: The length covers uuid and attempt, and ends before the position of the step.
_COUNTS: Final[Mapping[str, sa.TextClause]] = {
    dialect: sa.text(
        f"SELECT flow_uuid, state, CASE WHEN {position}(meta, :step) > 0"
        f" THEN substr(meta, {position}(meta, :step) + {len(_STEP)}, 58) END AS workflow, COUNT(*)"
        f" FROM {tables.ATOMS.name}"
        " WHERE flow_uuid IN :uuids AND kind = :task AND name <> :injector"
        " GROUP BY flow_uuid, state, workflow"
    ).bindparams(sa.bindparam("uuids", expanding=True))
    for dialect, position in _POSITION.items()
}

#: Each state has its own SELECT, because each can use an index.
_BACKLOG: Final = sa.text(
    "SELECT SUM(number), MIN(oldest) FROM ("
    f"SELECT COUNT(*) AS number, MIN(created) AS oldest FROM {_FLOWS} WHERE state IS NULL"
    " UNION ALL SELECT COUNT(*), MIN(created)"
    f" FROM {_FLOWS} WHERE state = '{states.PENDING}') AS parts"
)


_CHILDREN: Final = sa.text(
    f"SELECT f.state, COUNT(*) FROM {_TAGS} t JOIN {_FLOWS} f ON f.id = t.flow_id"
    " WHERE t.name = :key AND t.text = :parent GROUP BY f.state"
)


def backlog(connection: sa.Connection) -> _listing.Backlog:
    """Return the number and the age of the flows that no engine has started."""
    number, oldest = connection.execute(_BACKLOG).one()
    return _listing.Backlog(int(number), oldest or None)


def count_children(connection: sa.Connection, flow_uuid: str) -> Mapping[str, int]:
    """Return the number of child flows of a flow by state."""
    parameters = {"key": _tags.PARENT, "parent": flow_uuid}
    counts: dict[str, int] = {}
    for state, count in connection.execute(_CHILDREN, parameters):
        state = state or states.PENDING
        counts[state] = counts.get(state, 0) + int(count)
    return counts


def page(connection: sa.Connection, query: _listing.Query) -> base.Page:
    """Return a page of flows. One statement reads the rows, another one the counts."""
    if query.states is not None and not query.states:
        return base.Page([], None)
    matching_rows = _matching_rows(connection, query)
    listed = matching_rows[: query.limit]
    counts: dict[str, dict[str, int]] = {row["uuid"]: {} for row in listed}
    steps: dict[str, list[tuple[str, int, str, int]]] = {row["uuid"]: [] for row in listed}
    if listed:
        count_parameters = {
            "uuids": list(counts),
            "task": models.TaskDetail.kind,
            "injector": models.INJECTOR,
            "step": _STEP,
        }
        statement = _COUNTS[connection.dialect.name]
        for uuid, state, workflow, count in connection.execute(statement, count_parameters):
            of_flow, state = counts[uuid], state or states.PENDING
            if workflow is None:
                of_flow[state] = of_flow.get(state, 0) + count
            elif note := _WORKFLOW.match(workflow):
                steps[uuid].append((note[1], int(note[2]), state, count))
    after = None
    if len(matching_rows) > len(listed):
        after = str(_listing.Position(listed[-1]["created"], listed[-1]["id"]))
    flow_rows = [
        _row(row, counts[row["uuid"]], _listing.latest_step_counts(steps[row["uuid"]]))
        for row in listed
    ]
    return base.Page(flow_rows, after)


def _matching_rows(connection: sa.Connection, query: _listing.Query) -> list[dict[str, Any]]:
    """Return the rows of the page, and the first one of the next page."""
    if query.error is None:
        return _rows(connection, query)
    # The error is the reason in the latest entry of the history, inside a JSON text. Databases
    # refuse to extract some texts, such as one with a zero character.
    failed_states = frozenset(history.FAILED).intersection(query.states or history.FAILED)
    read = dataclasses.replace(query, states=failed_states, limit=_ROWS_PER_READ)
    matching_rows: list[dict[str, Any]] = []
    while failed_states and len(matching_rows) <= query.limit:
        found = _rows(connection, read)
        matching_rows += [row for row in found[: read.limit] if query.matches_error(_error(row))]
        if len(found) <= read.limit:
            break
        last = found[read.limit - 1]
        read = dataclasses.replace(read, after=_listing.Position(last["created"], last["id"]))
    return matching_rows[: query.limit + 1]


def _rows(connection: sa.Connection, query: _listing.Query) -> list[dict[str, Any]]:
    statement, parameters = _statement(connection.dialect.name, query)
    return [dict(row) for row in connection.execute(statement, parameters).mappings()]


def _error(row: Mapping[str, Any]) -> str | None:
    return history.error(row["state"], history.changes_of(rows.object_of(row["more"])))


def _statement(dialect: str, query: _listing.Query) -> tuple[sa.TextClause, dict[str, Any]]:
    """Build the statement. Each state has its own SELECT, because each can use an index."""
    now = dialects.now(dialect)
    order = "DESC" if query.newest_first else "ASC"
    source, created, number = f"{_FLOWS} f JOIN", "f.created", "f.id"
    tags = sorted(query.tags, key=lambda each: each.operator != "=")
    if tags:
        join = _ORDERED_JOIN[dialect]
        source = f"{_TAGS} t0 {join} {_FLOWS} f ON f.id = t0.flow_id {join}"
        if tags[0].operator == "=":  # The index is in the order of the list.
            created, number = "t0.created", "t0.flow_id"
    conditions, parameters = _conditions(dialect, query, created, number)
    _add_tag_conditions(tags, conditions, parameters)
    if _is_sparse(query):  # Without the sum, SQLite reads all flows in the order of an index.
        created += " + 0"
    parts = [
        "SELECT f.id, f.uuid, f.name, f.state, f.meta, f.more, f.created, f.updated, f.wish,"
        f" f.lease_owner, f.lease_until - {now} AS remaining, f.code, f.book_uuid,"
        f" b.name AS book_name FROM {source} {_BOOKS} b ON b.uuid = f.book_uuid"
        f" WHERE {' AND '.join([state, *conditions])}"
        f" ORDER BY {created} {order}, {number} {order} LIMIT :most"
        for state in _state_conditions(query)
    ]
    text = parts[0]
    if len(parts) > 1:
        union = (f"SELECT * FROM ({part}) AS part{n}" for n, part in enumerate(parts))
        text = f"{' UNION ALL '.join(union)} ORDER BY created {order}, id {order} LIMIT :most"
    return sa.text(text), {**parameters, "most": query.limit + 1}


def _is_sparse(query: _listing.Query) -> bool:
    """Return whether few flows match, which `tables.SPARSE_INDEXES` contain."""
    return query.resent or query.commanded


def _state_conditions(query: _listing.Query) -> list[str]:
    if query.states is None:
        return ["1 = 1"]
    # These are validated names of states, safe to insert into SQL.
    wanted = [f"'{state}'" for state in sorted(set(query.states))]
    if _is_sparse(query):
        return [f"COALESCE(f.state, '{states.PENDING}') IN ({', '.join(wanted)})"]
    never = ["f.state IS NULL"] if states.PENDING in query.states else []
    return [f"f.state = {state}" for state in wanted] + never


def _conditions(
    dialect: str, query: _listing.Query, created: str, number: str
) -> tuple[list[str], dict[str, Any]]:
    conditions, parameters = list[str](), dict[str, Any]()
    if query.name:  # All names contain an empty text, and MySQL refuses an empty pattern.
        conditions.append(_NAME[dialect].format(":name"))
        parameters["name"] = _name_pattern(dialect, query.name)
    if query.text:
        begins = "substr(f.uuid, 1, :text_length) = :text"
        conditions.append(f"({_NAME[dialect].format(':part')} OR {begins})")
        parameters |= {
            "part": _name_pattern(dialect, query.text),
            "text": rows.storable_text(query.text),
            "text_length": len(query.text),
        }
    if query.engine is not None:
        names = _listing.engine_names(query.engine)
        keys = [f"engine{position}" for position in range(len(names))]
        recorded = f"COALESCE({_ENGINE[dialect]}, '{_listing.UNRECORDED_ENGINE}')"
        conditions.append(f"{recorded} IN (:{', :'.join(keys)})")
        parameters |= zip(keys, map(rows.storable_text, names), strict=True)
    if query.queues is not None:
        keys = [f"queue{position}" for position in range(len(query.queues))]
        recorded = _QUEUE[dialect].format(_listing.UNRECORDED_QUEUE)
        conditions.append(f"{recorded} IN (:{', :'.join(keys)})")
        parameters |= zip(keys, map(rows.storable_text, query.queues), strict=True)
    if query.codes is not None:
        keys = [f"code{position}" for position in range(len(query.codes))]
        conditions.append(f"f.code IN (:{', :'.join(keys)})")
        parameters |= zip(keys, map(rows.storable_text, query.codes), strict=True)
    if query.roots:
        conditions.append(
            f"NOT EXISTS (SELECT 1 FROM {_TAGS} p WHERE p.flow_id = f.id AND p.name = :parent_key)"
        )
        parameters["parent_key"] = _tags.PARENT
    if query.commanded:
        conditions.append(rows.has_command("f."))
    if query.resent:
        conditions.append("f.resent_at IS NOT NULL")
    if query.since is not None:
        conditions.append(f"{created} >= :since")
        parameters["since"] = query.since
    if query.book is not None:
        conditions.append("f.book_uuid = :book")
        parameters["book"] = query.book
    if query.uuid is not None:
        parameters["uuid"] = query.uuid
        if dialect == dialects.POSTGRESQL:
            # With the collation C (from PostgreSQL 15), this reads a range of the index. The order
            # of a language has no such range: all uuids are read, but not all rows.
            conditions.append(f"f.uuid IN (SELECT uuid FROM {_FLOWS} WHERE uuid ^@ :uuid)")
        else:
            conditions.append("substr(f.uuid, 1, :length) = :uuid")
            conditions.append("f.uuid >= :uuid AND f.uuid < :above")
            parameters |= {"length": len(query.uuid), "above": f"{query.uuid}\U0010ffff"}
    if query.flow is not None:
        conditions.append("f.uuid = :flow")
        parameters["flow"] = query.flow
    if query.after is not None:
        sign = "<" if query.newest_first else ">"
        conditions.append(
            f"({created} {sign} :moment OR ({created} = :moment AND {number} {sign} :number))"
        )
        parameters |= {"moment": query.after.created, "number": query.after.tie}
    return conditions, parameters


def _add_tag_conditions(
    tags: Sequence[_tags.Condition], conditions: list[str], parameters: dict[str, Any]
) -> None:
    """Add the conditions of tags: the first one selects rows of the table `t0`."""
    for position, tag in enumerate(tags):
        table, key, value = f"t{position}", f"key{position}", f"tag{position}"
        terms = [f"{table}.name = :{key}"]
        if tag.operator == "=":
            terms.append(f"{table}.text = :{value}")
        else:  # `Condition` permits four operators, safe to insert into SQL.
            terms += [f"{table}.kind = '{tag.kind}'", f"{table}.number {tag.operator} :{value}"]
        if tag.given:
            terms.append(f"{table}.given = 1")
        parameters |= {key: tag.key, value: tag.text if tag.operator == "=" else tag.number}
        text = " AND ".join(terms)
        if position:
            same_flow = f"{table}.flow_id = t0.flow_id"
            text = f"EXISTS (SELECT 1 FROM {_TAGS} {table} WHERE {same_flow} AND {text})"
        conditions.append(text)


def _name_pattern(dialect: str, text: str) -> str:
    pattern = _listing.name_glob if dialect == dialects.SQLITE else _listing.name_regex
    return pattern(rows.storable_text(text))


def _row(
    row: Mapping[str, Any], counts: Mapping[str, int], step_counts: Mapping[str, int]
) -> base.FlowRow:
    other_fields, meta = rows.flow_fields(row)
    has_owner = row["lease_owner"] is not None and row["remaining"] > 0
    changes = history.changes_of(other_fields)
    reason = history.why_suspended(changes)
    command = rows.pending_command(row["wish"], row["state"])
    return base.FlowRow(
        row["uuid"],
        other_fields.get("name", row["name"]),
        row["book_uuid"],
        row["book_name"],
        row["state"] or states.PENDING,
        row["created"] or None,
        row["updated"],
        counts,
        row["lease_owner"] if has_owner else None,
        history.error(row["state"], changes),
        _tags.tags_in(meta),
        meta.get(models.CANCELLED) is not None,
        None if command is None else command.what,
        row["state"] == states.SUSPENDED and reason == history.PARKED,
        _listing.waits_of(meta.get(models.WAITS_FOR)),
        row["state"] == states.SUSPENDED and reason == history.BLOCKED,
        row["code"],
        step_counts,
        _listing.queue_of(meta.get(models.SUBMITTED)),
        _pauses.patterns_of(meta.get(models.PAUSED_BY)),
        _tags.parent_in(meta),
        history.undo_until(row["state"], changes, meta.get(models.UNDO_UNTIL)),
        meta.get(models.FORKED_FROM) is not None,
        bool(meta.get(models.FORKS)),
    )
