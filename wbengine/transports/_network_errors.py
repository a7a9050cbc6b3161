"""Reasons in errors of sockets and TLS."""

from __future__ import annotations

import socket
import ssl


def explain(error: BaseException | None) -> str:
    """Explain an error in a few words, by default in its own."""
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
