"""Reasons why a broker or a ledger is unreachable or disconnected."""

from __future__ import annotations

import socket
import ssl

from amqp import exceptions as amqp_errors


def explain(error: BaseException | None) -> str:
    """Explain in a few words why a broker is unreachable or disconnected."""
    match error:
        case socket.gaierror():
            return f"its name cannot be resolved ({error.strerror or error})"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted ({error.verify_message})"
        case ssl.SSLError() if "PEM" in str(error):
            return f"our own certificate or key cannot be used ({error})"
        case ssl.SSLError():
            return f"the TLS connection failed ({error.reason or error})"
        case ConnectionRefusedError():
            return "nothing listens there (connection refused)"
        case TimeoutError():
            return "it does not answer"
        case amqp_errors.ConsumerCancelled():
            return "a consumed queue was deleted"
        case amqp_errors.AccessRefused() if "access to" in str(error):
            return f"permission denied ({error})"
        case amqp_errors.AccessRefused():
            return f"it refuses this user or password ({error})"
        case amqp_errors.NotAllowed():
            return f"it has no such virtual host for this user ({error})"
        case Exception() if type(error).__module__ == "redis.exceptions":
            return _of_redis(error)
    return _words(error)


def _of_redis(error: Exception) -> str:
    """Explain an exception of redis-py by its name, because redis-py is optional."""
    match type(error).__name__:
        case "AuthenticationError":
            return f"it refuses this user or password ({error})"
        case "TimeoutError":
            return "it does not answer"
        case "ConnectionError" if isinstance(error.__context__, OSError):
            return explain(error.__context__)
    return _words(error)


def _words(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__
