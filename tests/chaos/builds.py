"""Builds of the package: copies of `wbengine` with text substitutions.

They model the next two releases after a change of formats. The *first* reads formats 1 and
2 and writes 1, the *second* writes 2. In format 2, the epoch of a message is in another header,
the bodies of REQUEST and RESPONSE and the head of a message have other members, and the messages
of a consumer in Redis have another key. The keys of Redis have format 2, then 3. The tables of
folders and ledgers change only their number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support import servers

#: Substitutions in order: file, old text, new text.
Changes = tuple[tuple[str, str, str], ...]

_ENCODING = "transports/_encoding.py"
_FORMATS = "_text/data_formats.py"
_ENVELOPE = "engines/worker_based/_messages/envelope.py"
_FINDER = "engines/worker_based/_discovery/finder.py"
_PROXY = "engines/worker_based/proxy.py"
_REQUESTS = "engines/worker_based/_messages/request_messages.py"
_SCRIPTS = "transports/_redis/scripts"

_READERS = '''

def read_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Convert received headers to format 1."""
    converted = dict(headers)
    if "wbe-term" in converted:
        converted[hd.WBE_EPOCH] = converted.pop("wbe-term")
    return converted


def read_body(body: Any, headers: Mapping[str, Any] | None) -> Any:
    """Convert a received body to format 1."""
    if (headers or {}).get(hd.WBE_VERSION) != "2":
        return body
    converted = dict(body)
    if "status" in converted:
        converted["state"] = converted.pop("status")
    if "arguments" in converted:
        converted["arguments"] = dict(converted["arguments"])
    return converted


def received(data: Any, message: Any) -> Envelope:
'''

_WRITER = '''

def write_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a body to format 2."""
    converted = dict(body)
    if "state" in converted:
        converted["status"] = converted.pop("state")
    if "arguments" in converted:
        converted["arguments"] = list(converted["arguments"].items())
    return converted


def check_size('''

_CONVERT_KEYS = """\
if call('HGET', meta_key, 'f') == '2' then
  for _, consumer in ipairs(call('ZRANGE', consumers_key, 0, -1)) do
    if call('EXISTS', held_key(consumer)) == 1 then
      call('RENAME', held_key(consumer), prefix .. 'taken:' .. consumer)
    end
  end
  call('HSET', meta_key, 'f', FORMAT)
end
return call('HGET', meta_key, 'id') or ''
"""
_CONVERT_FOLDER = """\
        connection.execute("UPDATE about SET format = 2")
        if boot != _boot():
"""
_CONVERT_LEDGER = """\
        update = sa.text("UPDATE wbe_ledger_about SET format = 2")
        self._run("opening", lambda connection: connection.execute(update))
        return str(about.digest)
"""

READ_MESSAGES: Changes = (
    (_FORMATS, 'Format("message", 1, (1,))', 'Format("message", 1, (1, 2))'),
    (_ENVELOPE, "\n\ndef received(data: Any, message: Any) -> Envelope:\n", _READERS),
    (_ENVELOPE, "message.headers or {},\n", "read_headers(message.headers or {}),\n"),
    (_ENVELOPE, "json.loads(body),\n", "read_body(json.loads(body), headers),\n"),
    (_ENVELOPE, "        headers=headers,\n", "        headers=read_headers(headers),\n"),
    (
        _PROXY,
        "self._dispatcher.on_message(data, message)",
        "self._dispatcher.on_message(env.read_body(data, message.headers), message)",
    ),
    (
        _ENCODING,
        "headers.get(_EPOCH, 1)",
        'headers.get("wbe-term", headers.get(_EPOCH, 1))',
    ),
    (
        _ENCODING,
        'head.get("properties")',
        'head.setdefault("properties", head.get("about"))',
    ),
)

WRITE_MESSAGES: Changes = (
    (_FORMATS, 'Format("message", 1, (1, 2))', 'Format("message", 2, (1, 2))'),
    (_REQUESTS, "\n            headers[hd.WBE_EPOCH] =", '\n            headers["wbe-term"] ='),
    (
        _REQUESTS,
        "\n                headers[hd.WBE_EPOCH] =",
        '\n                headers["wbe-term"] =',
    ),
    (_ENVELOPE, "\n\ndef check_size(", _WRITER),
    (
        _ENVELOPE,
        "json_text.encode(self.body,",
        "json_text.encode(write_body(self.body),",
    ),
    (_ENCODING, '"properties": properties,', '"about": properties,'),
)

READ_STORES: Changes = (
    (_FORMATS, 'Format("key", 2, (2,))', 'Format("key", 2, (2, 3))'),
    (_FORMATS, 'Format("folder", 1, (1,))', 'Format("folder", 1, (1, 2))'),
    (_FORMATS, 'Format("ledger", 1, (1,))', 'Format("ledger", 1, (1, 2))'),
    (
        f"{_SCRIPTS}/shared/server.lua",
        "return prefix .. 'h:' .. consumer",
        "return prefix .. (call('HGET', meta_key, 'f') == '3' and 'taken:' or 'h:') .. consumer",
    ),
)

#: This build also converts existing keys and tables when it opens them.
WRITE_STORES: Changes = (
    (_FORMATS, 'Format("key", 2, (2, 3))', 'Format("key", 3, (2, 3))'),
    (_FORMATS, 'Format("folder", 1, (1, 2))', 'Format("folder", 2, (1, 2))'),
    (_FORMATS, 'Format("ledger", 1, (1, 2))', 'Format("ledger", 2, (1, 2))'),
    (
        f"{_SCRIPTS}/declare.lua",
        "return call('HGET', meta_key, 'id') or ''\n",
        _CONVERT_KEYS,
    ),
    (
        "transports/_folder/folder_tables.py",
        "        if boot != _boot():\n",
        _CONVERT_FOLDER,
    ),
    (
        "transports/_sql/sql_ledger.py",
        "        return str(about.digest)\n",
        _CONVERT_LEDGER,
    ),
)

#: Removes the checks of formats: from the names of queues, and from workers and engines.
WITHOUT_CHECKS: Changes = (
    (_FORMATS, "return type(version) is int and version in self.read", "return True"),
    (_ENVELOPE, '(f"{version}", exchange,', "(exchange,"),
    (_FINDER, "if data_formats.MESSAGE.written not in heartbeat.formats:", "if False:"),
)

FIRST: Changes = READ_MESSAGES + READ_STORES
SECOND: Changes = FIRST + WRITE_MESSAGES + WRITE_STORES


def create(folder: Path, changes: Iterable[tuple[str, str, str]]) -> Path:
    """Create a build in a new folder, which contains the package, and return the folder.

    :raises AssertionError: if a file does not contain an old text exactly once.
    """
    package = folder / "wbengine"
    shutil.copytree(
        servers.REPOSITORY / "wbengine", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, old, new in changes:
        text = (package / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"wbengine/{name} must contain once: {old}"
        (package / name).write_text(text.replace(old, new), encoding="utf-8")
    return folder
