"""Replacement of inputs and results of a stored flow, before the flow runs again.

A command to retry a flow contains the edits. The engine that carries out the command checks them
again: a task that has used a value keeps it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine.persistence import _macs, _sealed_fields, models
from wbengine.types import codec

__all__ = ["Edits", "has_used_values", "replaceable_inputs"]

#: Kind of the MAC of edits.
_KIND: Final = "edits of flow"

#: States of atoms that have used no values, or use them again when they run next.
_UNUSED_STATES: Final = (
    None, states.PENDING, states.FAILURE, states.REVERTED, states.IGNORE,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Edits:
    """New values of inputs of a flow, by name, and of results of its tasks, by name of the task.

    :raises TypeError: if a name is not a str.
    """

    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, values in (("input", self.inputs), ("task", self.results)):
            if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
                raise TypeError(f"Edits must be a dict by name of the {what}, got {values!r:.80}")

    def __bool__(self) -> bool:
        return bool(self.inputs or self.results)

    def describe(self) -> str:
        """Return the names of the replaced values, for the history of the flow."""
        parts = (("input", self.inputs), ("result of", self.results))
        texts = [f"{what} {', '.join(map(repr, names))}" for what, names in parts if names]
        return f"{' and '.join(texts)} replaced" if texts else ""

    def to_dict(self, flow_uuid: str) -> dict[str, Any]:
        """Return the edits of a flow as data for JSON, with a MAC and encrypted if there are keys.

        :raises NotEncodable: if a value cannot be encoded.
        """
        data: dict[str, Any] = {
            "inputs": codec.pack(dict(self.inputs), "inputs"),
            "results": codec.pack(dict(self.results), "results"),
        }
        mac = _macs.sign(_KIND, flow_uuid, data)
        signed = data if mac is None else {**data, _macs.MAC: mac}
        place = _sealed_fields.place_of_edits(flow_uuid)
        return _sealed_fields.sealed_parts(signed, ("inputs", "results"), *place)

    @classmethod
    def from_dict(cls, data: Any, flow_uuid: str) -> Edits:
        """Create the edits of a flow from the result of `to_dict`.

        :raises InvalidFormat: if the data is invalid.
        :raises NotTrusted: if there are keys, and the data has no MAC of one of them.
        """
        if not isinstance(data, Mapping):
            raise exceptions.InvalidFormat(f"Edits must be a dict, got {data!r:.80}")
        data = _sealed_fields.opened_parts(data, *_sealed_fields.place_of_edits(flow_uuid))
        _macs.verify(_KIND, flow_uuid, data)
        try:
            return cls(codec.unpack(data["inputs"]), codec.unpack(data["results"]))
        except (LookupError, TypeError, ValueError, exceptions.InvalidFormat) as error:
            raise exceptions.InvalidFormat(f"invalid edits: {error}") from error

    def check(self, flow: models.FlowDetail, used_names: Mapping[str, Collection[str]]) -> None:
        """Check that no task of the flow has used a value that is to be replaced.

        A workflow in progress is not checked, because only a replay shows what its steps have used.
        Tasks that have used a result are not known here.

        :param flow: the flow with its atoms.
        :param used_names: names of the inputs that each atom uses, by name of the atom.
        :raises NotFound: if the flow has no such input or task.
        :raises InvalidState: if a task has used an input, or a task has no result.
        """
        records, inputs = _parts(flow)
        known_inputs = {*inputs, *(name for names in used_names.values() for name in names)}
        for name in self.inputs:
            if name not in known_inputs:
                near = object_names.hint(name, known_inputs)
                raise exceptions.NotFound(f"Flow {flow.uuid} has no input {name!r}{near}")
            if (record := _user_of(name, flow, records, used_names)) is not None:
                raise exceptions.InvalidState(
                    f"Input {name!r} of flow {flow.uuid} cannot be replaced: {record.kind}"
                    f" {record.name!r} has used it and is in {record.state}"
                )
        for name in self.results:
            task = records.get(name)
            if not isinstance(task, models.TaskDetail):
                near = object_names.hint(name, records)
                raise exceptions.NotFound(f"Flow {flow.uuid} has no task {name!r}{near}")
            if not _has_replaceable_result(task):
                reason = (
                    f"it is in {task.state or states.PENDING} and has no result"
                    if task.state != states.SUCCESS
                    else "it is the list of the results of a Map"
                )
                raise exceptions.InvalidState(
                    f"Result of task {name!r} of flow {flow.uuid} cannot be replaced: {reason}"
                )


def has_used_values(record: models.AtomDetail) -> bool:
    """Return whether an atom has used the values of its arguments, and will not use them again."""
    return record.state not in _UNUSED_STATES


def replaceable_inputs(
    flow: models.FlowDetail, used_names: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """Return the present inputs of a flow that `Edits.check` accepts, by name."""
    records, inputs = _parts(flow)
    return {
        name: value
        for name, value in inputs.items()
        if _user_of(name, flow, records, used_names) is None
    }


def replaceable_results(flow: models.FlowDetail) -> list[str]:
    """Return the names of the tasks whose results `Edits.check` accepts, if the flow failed."""
    if flow.state != states.FAILURE:
        return []
    records, _ = _parts(flow)
    return [name for name, record in records.items() if _has_replaceable_result(record)]


def _has_replaceable_result(record: models.AtomDetail) -> bool:
    is_task = isinstance(record, models.TaskDetail)
    return is_task and record.state == states.SUCCESS and record.items is None


def _parts(flow: models.FlowDetail) -> tuple[dict[str, models.AtomDetail], Mapping[str, Any]]:
    """Return the records of the atoms by name, and the inputs."""
    records = {record.name: record for record in flow if not record.is_step}
    injector = records.pop(models.INJECTOR, None)
    return records, (injector.results or {}) if injector is not None else {}


def _user_of(
    name: str,
    flow: models.FlowDetail,
    records: Mapping[str, models.AtomDetail],
    used_names: Mapping[str, Collection[str]],
) -> models.AtomDetail | None:
    """Return the record of an atom that has used an input, or None."""
    if flow.state == states.REVERTED:  # All of its tasks run again.
        return None
    for atom_name, names in used_names.items():
        record = records.get(atom_name)
        if record is None or name not in names or not has_used_values(record):
            continue
        is_workflow = record.meta_value(models.WORKFLOW) is not None
        is_in_progress = is_workflow and record.state == states.RUNNING
        if not is_in_progress and name not in (record.meta_value(models.META_INJECTED) or ()):
            return record
    return None
