"""Values that workflows published."""

from __future__ import annotations

import contextlib
from typing import Any

from wbengine.operations import _backends
from wbengine.persistence import base
from wbengine.persistence._published_values import loaded_from
from wbengine.types import codec

__all__ = ["published"]


def published(backend: base.Backend, uuid: str) -> dict[str, Any]:
    """Return the values that the workflows of a flow published with `steps.publish`, by name.

    The flow may be running or not. If several workflows published the same name, the value of the
    workflow that was started last is returned. Instances of classes that this process does not
    know are returned as dicts of their fields, and arrays and frames of libraries that are not
    installed as text.

    :raises NotFound: if the flow does not exist.
    """
    _backends.check(backend)
    with (
        contextlib.closing(backend.get_connection()) as connection,
        codec.unknown_classes_as_text(with_codecs=True),
    ):
        return loaded_from(connection.get_flow_details(uuid), backend.payloads)
