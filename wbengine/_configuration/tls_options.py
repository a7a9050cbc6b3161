"""Options of TLS, with the same meaning for every broker."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine._configuration import named_options

#: Options that name files.
FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
CHECK_HOSTNAME: Final = "ssl_check_hostname"
CERT_REQS: Final = "ssl_cert_reqs"
MIN_VERSION: Final = "ssl_min_version"
CIPHERS: Final = "ssl_ciphers"


@dataclass(frozen=True)
class TLSOptions:
    """Options that every connection with TLS has."""

    ssl_ca_certs: str | None = named_options.option(None, "File with the trusted authorities.")
    ssl_certfile: str | None = named_options.option(None, "File with the certificate of this side.")
    ssl_keyfile: str | None = named_options.option(None, "File with the key of this side.")
    ssl_cert_reqs: str = named_options.option(
        "required", "``optional``, or ``none``: no verification."
    )
    ssl_check_hostname: bool = named_options.option(
        True, "False accepts the certificate of any host."
    )
    ssl_ciphers: str | None = named_options.option(
        None, "Allowed ciphers, in the format of OpenSSL."
    )


_REQUIREMENTS: Final = ("none", "optional", "required")


def read(name: str, value: Any) -> Any:
    """Convert the value of an option from text; `ssl_cert_reqs` becomes one of three words.

    :raises ValueError: if the value is invalid.
    """
    if name == CHECK_HOSTNAME:
        return named_options.flag(name, value)
    if name == CERT_REQS:
        word: Any = value
        if isinstance(value, int) and value in set(ssl.VerifyMode):
            word = ssl.VerifyMode(value).name
        if isinstance(word, str):
            word = word.lower().removeprefix("cert_")
        return named_options.choice(name, word, _REQUIREMENTS)
    if name == MIN_VERSION:
        if isinstance(value, int) and value in set(ssl.TLSVersion):
            return ssl.TLSVersion(value)
        return ssl.TLSVersion[named_options.choice(name, value, list(ssl.TLSVersion.__members__))]
    return named_options.text(name, value) if name == CIPHERS else value


def check_files(files: Mapping[str, Any]) -> None:
    """Check that the files of options of TLS exist, because later errors do not name the file.

    :raises ValueError: if one does not exist.
    """
    for name in FILES:
        path = files.get(name)
        if path is not None and not os.path.isfile(path):
            raise ValueError(f"{name} must be an existing file, got {str(path)!r}")
