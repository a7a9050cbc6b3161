"""MACs of records that decide which code is run, and with what: made and verified here only.

With keys (those that `WBENGINE_KEYS` names) a flow's note of what made it, what is injected into it
later, the details of jobs, and schedules bear a MAC of the store's secret, bound to the flow's id,
to that of the job, or to the schedule's name.  It is verified when a flow is to be made of them,
never when they are looked at.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import _codec, exceptions, keys
from wbengine.persistence import models

__all__ = [
    "FLOW", "JOB", "MAC", "SCHEDULE",
    "check_inputs", "sign", "sign_injected", "signed_note", "verify",
]  # fmt: skip

#: What is signed.
FLOW: Final = "flow"
JOB: Final = "job"
SCHEDULE: Final = "schedule"
_INJECTED: Final = "what is injected into flow"

#: Where the MAC is, among what it is of.
MAC: Final = "mac"
#: In a flow's note: a digest of each input that it was made with.
_INPUTS: Final = "inputs"
#: Among them: all that programs written for TaskFlow put where conductors find it.
_OF_META: Final = "meta['store']"


def sign(kind: str, about: str, data: Mapping[str, Any]) -> str | None:
    """The MAC of `data` about a flow, a job or a schedule; None: there are no keys.

    :raises NotTrusted: the keys have no secret for stores.
    :raises InvalidFormat: there is no such key file, or it is none.
    """
    found = keys.keyring(None)
    return None if found is None else found.mac(f"{kind} record", _bytes(about, data))


def verify(kind: str, about: str, data: Mapping[str, Any]) -> None:
    """Make sure that `data` bear the MAC that `sign` made of them, if there are keys.

    Until `accept_unsigned_until` of the keys they may bear none.

    :raises NotTrusted: they do not; the text says which of them.
    """
    found = keys.keyring(None)
    if found is None:
        return
    mac = data.get(MAC)
    if mac is None and time.time() < found.accept_unsigned_until:
        return
    try:
        found.verify_mac(f"{kind} record", _bytes(about, data), mac)
    except exceptions.NotTrusted as error:
        raise exceptions.NotTrusted(f"{kind} {about!r:.200} is not to be run: {error}") from error


def signed_note(noted: Mapping[str, Any], detail: models.FlowDetail) -> dict[str, Any]:
    """A flow's note of what made it, with a MAC of that and of the inputs that are there, if there
    are keys.  What no store can keep has none.
    """
    if keys.keyring(None) is None:
        return dict(noted)
    try:
        digests = {name: _digest(value) for name, value in _inputs(detail).items()}
        note = {**noted, _INPUTS: digests}
        return {**note, MAC: sign(FLOW, detail.uuid, note)}
    except exceptions.NotEncodable:
        return dict(noted)


def sign_injected(detail: models.FlowDetail, atom: models.AtomDetail) -> None:
    """Give the record of an atom, or of the injector, a MAC of what is injected, if there are keys
    and the flow can be made of its record.  What no store can keep has none.
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
    return atom.results if is_injector else atom.noted(models.META_INJECTED)


def _injected_note(atom: models.AtomDetail) -> dict[str, Any]:
    return {"atom": atom.name, "values": _injected(atom)}


def check_inputs(detail: models.FlowDetail) -> None:
    """Make sure that a flow has the inputs that `signed_note` saw, and that what was injected
    later, also for one atom, bears the MAC of `sign_injected`.

    :raises NotTrusted: it has not.
    """
    note = detail.meta.get(models.FACTORY)
    noted = note.get(_INPUTS) if isinstance(note, Mapping) else None
    if keys.keyring(None) is None or not isinstance(noted, Mapping):
        return
    inputs = _inputs(detail)
    for name in {*noted, *({_OF_META} & inputs.keys())}:
        if name not in inputs or _digest(inputs[name]) != noted.get(name):
            raise exceptions.NotTrusted(
                f"flow {detail.uuid!r} is not to be run: its input {name!r:.200} is another"
            )
    injectors = 0
    for atom in detail:
        later = _injected(atom)
        if atom.name == models.INJECTOR:
            injectors += 1
            later = injectors > 1 or inputs.keys() - noted.keys() - {_OF_META}
        if later:
            mac = atom.noted(models.META_INJECTED_MAC)
            verify(_INJECTED, detail.uuid, {**_injected_note(atom), MAC: mac})


def _inputs(detail: models.FlowDetail) -> dict[str, Any]:
    atoms: Iterable[models.AtomDetail] = detail
    injector = next((atom for atom in atoms if atom.name == models.INJECTOR), None)
    found = {} if injector is None else dict(injector.results or {})
    more = detail.meta.get("store")
    return {**found, _OF_META: more} if more else found


def _digest(value: Any) -> str:
    return hashlib.sha256(_bytes("input", {"value": value})).hexdigest()


def _bytes(about: str, data: Mapping[str, Any]) -> bytes:
    """The same for equal data, whichever store they went through."""
    told = {name: value for name, value in data.items() if name != MAC}
    packed = _codec.pack([about, told], "record")
    return json.dumps(packed, sort_keys=True, separators=(",", ":")).encode()
