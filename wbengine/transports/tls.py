"""Options of TLS: they mean the same for every broker that is reached by it."""

from __future__ import annotations

import ssl
from typing import Any, Final

from wbengine import _options

#: Those that name files.
FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
CHECK_HOSTNAME: Final = "ssl_check_hostname"
CERT_REQS: Final = "ssl_cert_reqs"
#: Those that every such broker has.
NAMES: Final = (*FILES, CERT_REQS, CHECK_HOSTNAME, "ssl_ciphers")

_REQUIREMENTS: Final = ("none", "optional", "required")


def read(name: str, value: Any) -> Any:
    """The value of an option, which may be a word; of `ssl_cert_reqs`, one of three words.

    :raises ValueError: it makes no sense.
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
