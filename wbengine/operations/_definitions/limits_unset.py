"""The operation `limits unset`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _limiting
from wbengine.operations import _operation as op


@op.operation(
    role=op.OPERATOR,
    result={"name": {"type": "string"}},
    command=op.Command(("shop.call_shop",), line="{name}: values of the code"),
    button=op.Button(notice="The values of the code apply."),
)
def unset(scope: op.Scope, name: _limiting.LimitName) -> dict[str, Any]:
    """Revert a limit to the values of the code.

    Engines follow within two seconds.
    """
    _limiting.reset_limit(scope, name)
    return {"name": name}
