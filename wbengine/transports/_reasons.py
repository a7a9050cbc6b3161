"""Reasons why a broker or a ledger is unreachable or disconnected."""

from __future__ import annotations

import socket
import ssl

from wbengine.transports import _kinds


def explain(error: BaseException | None) -> str:
    """Explain in a few words why a broker is unreachable or disconnected."""
    if error is not None:
        for kind in _kinds.loaded_kinds():
            reason = kind.explain(error)
            if reason is not None:
                return reason
    return explain_network_error(error)


def explain_network_error(error: BaseException | None) -> str:
    """Explain an error of a socket or of TLS in a few words, by default in its own."""
    match error:
        case socket.gaierror():
            return f"its name cannot be resolved ({error.strerror or error})"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted ({error.verify_message})"
        case ssl.SSLError() if "PEM" in str(error):
            return f"our own certificate or key cannot be used ({error})"
        case ssl.SSLError():
            # Errors of the settings have no attribute `reason`.
            return f"the TLS connection failed ({getattr(error, 'reason', None) or error})"
        case ConnectionRefusedError():
            return "nothing listens there (connection refused)"
        case TimeoutError():
            return "it does not answer"
    return " ".join(str(error).split()) or type(error).__name__


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, its cause, the cause of that, and so on."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


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
