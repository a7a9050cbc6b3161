"""MACs of records from which a process builds and runs flows.

If `WBENGINE_KEYS` names keys, a MAC with the secret for stores protects the factory note of a
flow, values injected later, the notes of steps of workflows, the details of jobs, schedules, and
access keys. The MAC also covers the id of the flow, job or access key, or the name of the schedule.
It is verified before a flow is built from the record, before a workflow continues or reverts its
steps, and before an access key is accepted. It is not verified for display.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine._security import keys
from wbengine.persistence import models
from wbengine.types import codec

__all__ = [
    "ACCESS_KEY", "FLOW", "JOB", "MAC", "SCHEDULE", "STEP",
    "check_continuation", "check_inputs", "check_step", "sign", "sign_again", "sign_injected",
    "signed_continuation", "signed_note", "signed_step", "verify",
]  # fmt: skip

FLOW: Final = "flow"
JOB: Final = "job"
SCHEDULE: Final = "schedule"
STEP: Final = "step"
ACCESS_KEY: Final = "access key"
_CONTINUATION: Final = "continuation"
_INJECTED: Final = "what is injected into flow"

#: Key of the MAC in the signed data.
MAC: Final = "mac"
#: Key of the digests of the inputs in a flow's factory note.
_INPUTS: Final = "inputs"
#: Name under which the digests include the values that TaskFlow programs store for conductors.
_META_STORE: Final = "meta['store']"
#: Name under which the digests include the defaults of workflows.
_META_DEFAULTS: Final = "meta['defaults']"
_META_NAMES: Final = frozenset({_META_STORE, _META_DEFAULTS})


def sign(
    kind: str, about: str, data: Mapping[str, Any], keyring: keys.Keyring | None = None
) -> str | None:
    """Return the MAC of the data of a flow, job or schedule, or None if there are no keys.

    :param keyring: the keys, if the caller has loaded them.
    :raises NotTrusted: if the keys contain no secret for stores.
    :raises InvalidFormat: if the key file is missing or invalid.
    """
    keyring = keys.keyring(None) if keyring is None else keyring
    return None if keyring is None else keyring.mac(f"{kind} record", _bytes(about, data))


def verify(
    kind: str, about: str, data: Mapping[str, Any], keyring: keys.Keyring | None = None
) -> None:
    """Verify the MAC of `sign`, if there are keys.

    Before the time `accept_unsigned_until` of the keys, the MAC may be missing.

    :param keyring: the keys, if the caller has loaded them.
    :raises NotTrusted: if the MAC is missing or wrong; the message names the record.
    """
    keyring = keys.keyring(None) if keyring is None else keyring
    if keyring is None:
        return
    mac = data.get(MAC)
    if mac is None and time.time() < keyring.accept_unsigned_until:
        return
    try:
        keyring.verify_mac(f"{kind} record", _bytes(about, data), mac)
    except exceptions.NotTrusted as error:
        raise exceptions.NotTrusted(f"{kind} {about!r:.200} is not trusted: {error}") from error


def signed_note(factory_note: Mapping[str, Any], detail: models.FlowDetail) -> dict[str, Any]:
    """Return the factory note with a MAC of the note and of the current inputs, if there are keys.

    If the note or an input cannot be encoded, the result has no MAC.
    """
    if keys.keyring(None) is None:
        return dict(factory_note)
    try:
        digests = {name: _digest(value) for name, value in _inputs(detail).items()}
        note = {**factory_note, _INPUTS: digests}
        return {**note, MAC: sign(FLOW, detail.uuid, note)}
    except exceptions.NotEncodable:
        return dict(factory_note)


def sign_again(detail: models.FlowDetail) -> None:
    """Sign the factory note of a flow again after its inputs were replaced, if it was signed.

    The caller has verified it, and the edits.
    """
    note = detail.meta.get(models.FACTORY)
    if keys.keyring(None) is not None and isinstance(note, Mapping) and MAC in note:
        unsigned = {name: value for name, value in note.items() if name not in (_INPUTS, MAC)}
        detail.meta[models.FACTORY] = signed_note(unsigned, detail)


def sign_injected(detail: models.FlowDetail, atom: models.AtomDetail) -> None:
    """Add a MAC of the injected values to the record of an atom or of the injector.

    This has no effect without keys, without a factory note, or if a value cannot be encoded.
    """
    if models.FACTORY not in detail.meta or not _injected(atom):
        return
    try:
        mac = sign(_INJECTED, detail.uuid, _injected_note(atom))
    except exceptions.NotEncodable:
        mac = None
    if mac is not None:
        atom.meta[models.META_INJECTED_MAC] = mac


def _injected(atom: models.AtomDetail) -> Any:
    is_injector = atom.name == models.INJECTOR
    return atom.results if is_injector else atom.meta_value(models.META_INJECTED)


def _injected_note(atom: models.AtomDetail) -> dict[str, Any]:
    return {"atom": atom.name, "values": _injected(atom)}


def check_inputs(detail: models.FlowDetail) -> None:
    """Verify the inputs that `signed_note` signed and the values that `sign_injected` signed.

    :raises NotTrusted: if an input or a MAC does not match.
    """
    note = detail.meta.get(models.FACTORY)
    digests = note.get(_INPUTS) if isinstance(note, Mapping) else None
    if keys.keyring(None) is None or not isinstance(digests, Mapping):
        return
    inputs = _inputs(detail)
    for name in {*digests, *(_META_NAMES & inputs.keys())}:
        if name not in inputs or _digest(inputs[name]) != digests.get(name):
            raise exceptions.NotTrusted(
                f"flow {detail.uuid!r} is not trusted: its input {name!r:.200} was changed"
            )
    injectors = 0
    for atom in detail:
        injected = _injected(atom)
        if atom.name == models.INJECTOR:
            injectors += 1
            injected = injectors > 1 or inputs.keys() - digests.keys() - _META_NAMES
        if injected:
            mac = atom.meta_value(models.META_INJECTED_MAC)
            verify(_INJECTED, detail.uuid, {**_injected_note(atom), MAC: mac})


def signed_step(
    flow_uuid: str, record: models.AtomDetail, note: dict[str, Any], keyring: keys.Keyring
) -> dict[str, Any]:
    """Return the note of a step of a workflow with a MAC, unless it cannot be encoded."""
    with contextlib.suppress(exceptions.NotEncodable):
        return {**note, MAC: sign(STEP, *_step(flow_uuid, record, note), keyring)}
    return note


def check_step(flow_uuid: str, record: models.AtomDetail, keyring: keys.Keyring) -> None:
    """Verify the MAC of `signed_step`.

    :raises NotTrusted: if it is missing or wrong; see `verify`.
    """
    verify(STEP, *_step(flow_uuid, record, record.meta[models.STEP]), keyring)


def signed_continuation(
    flow_uuid: str, record: models.AtomDetail, content: dict[str, Any]
) -> dict[str, Any]:
    """Return the data of a workflow that continued as new, with a MAC if there are keys."""
    keyring = keys.keyring(None)
    if keyring is None:
        return content
    with contextlib.suppress(exceptions.NotEncodable):
        mac = sign(_CONTINUATION, *_step(flow_uuid, record, content), keyring)
        return {**content, MAC: mac}
    return content


def check_continuation(flow_uuid: str, record: models.AtomDetail) -> None:
    """Verify the MAC of `signed_continuation`, if there are keys.

    :raises NotTrusted: if it is missing or wrong; see `verify`.
    """
    verify(_CONTINUATION, *_step(flow_uuid, record, record.meta[models.CONTINUED]))


def _step(
    flow_uuid: str, record: models.AtomDetail, note: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    identity = {"flow": flow_uuid, "record": record.uuid, "name": record.name}
    return f"{record.name} of flow {flow_uuid}", {**note, **identity}


def _inputs(detail: models.FlowDetail) -> dict[str, Any]:
    atoms: Iterable[models.AtomDetail] = detail
    injector = next((atom for atom in atoms if atom.name == models.INJECTOR), None)
    values = {} if injector is None else dict(injector.results or {})
    defaults = None if injector is None else injector.meta_value(models.META_DEFAULTS)
    for name, content in ((_META_STORE, detail.meta.get("store")), (_META_DEFAULTS, defaults)):
        if content:
            values[name] = content
    return values


def _digest(value: Any) -> str:
    return hashlib.sha256(_bytes("input", {"value": value})).hexdigest()


def _bytes(about: str, data: Mapping[str, Any]) -> bytes:
    """Return the same bytes for equal data from all kinds of stores."""
    unsigned = {name: value for name, value in data.items() if name != MAC}
    packed = codec.pack([about, unsigned], "record")
    return json.dumps(packed, sort_keys=True, separators=(",", ":")).encode()
