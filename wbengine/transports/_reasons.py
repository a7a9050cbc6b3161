"""Reasons why a broker or a ledger is unreachable or disconnected."""

from __future__ import annotations

import ssl

from wbengine.transports import _kinds, _network_errors


def explain(error: BaseException | None) -> str:
    """Explain in a few words why a broker is unreachable or disconnected."""
    if error is not None:
        for kind in _kinds.loaded_kinds():
            reason = kind.explain(error)
            if reason is not None:
                return reason
    return _network_errors.explain(error)


def may_pass(error: BaseException) -> bool:
    """Return whether an exception of wbengine reports a state of the server that may pass."""
    return any(kind.may_pass(error) for kind in _kinds.loaded_kinds())


def is_refusal(error: BaseException | None) -> bool:
    """Return whether the broker refuses access, so that a retry is useless."""
    if error is None:
        return False
    return isinstance(error, ssl.SSLCertVerificationError) or any(
        kind.is_refusal(error) for kind in _kinds.loaded_kinds()
    )
