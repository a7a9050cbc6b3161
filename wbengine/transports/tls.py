"""Options of TLS, with the same meaning for every broker."""

from __future__ import annotations

import ssl
from typing import Any, Final

from wbengine import _options

#: Options that name files.
FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
CHECK_HOSTNAME: Final = "ssl_check_hostname"
CERT_REQS: Final = "ssl_cert_reqs"
#: Options that every broker with TLS has.
NAMES: Final = (*FILES, CERT_REQS, CHECK_HOSTNAME, "ssl_ciphers")

_REQUIREMENTS: Final = ("none", "optional", "required")


def read(name: str, value: Any) -> Any:
    """Convert the value of an option from text; `ssl_cert_reqs` becomes one of three words.

    :raises ValueError: if the value is invalid.
    """
    if name == CHECK_HOSTNAME:
        return _options.flag(name, value)
    if name == CERT_REQS:
        word: Any = value
        if isinstance(value, int) and value in set(ssl.VerifyMode):
            word = ssl.VerifyMode(value).name
        if isinstance(word, str):
            word = word.lower().removeprefix("cert_")
        return _options.choice(name, word, _REQUIREMENTS)
    return value
