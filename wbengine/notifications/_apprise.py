"""Messages to the services that Apprise supports."""

from __future__ import annotations

from typing import Any, Final

from wbengine._configuration.named_secrets import Secret
from wbengine._imports import installing
from wbengine.notifications._message import Message
from wbengine.notifications._sender import SendError

__all__ = ["Apprise"]


class Apprise:
    """Sends messages to a URL of Apprise, which is a secret.

    Redirects are not followed. The time limits are those of Apprise.

    :raises ImportError: if Apprise is not installed.
    :raises ValueError: if Apprise does not support the URL.
    """

    takes_all: Final = False

    def __init__(self, url: Secret) -> None:
        try:
            import apprise
        except ImportError as error:
            raise ImportError(installing.needs("notify", "apprise", "apprise")) from error
        self._module: Any = apprise
        self._url = url
        self._client()

    @property
    def place(self) -> str:
        return f"{self._url.read().partition('://')[0]}://***"

    def send(self, message: Message) -> None:
        if not self._client().notify(title=f"[wbengine] {message.title}", body=message.text):
            raise SendError("Apprise reports that the message was not sent; see its log")

    def _client(self) -> Any:
        asset = self._module.AppriseAsset(http_redirects=False)
        client = self._module.Apprise(asset=asset)
        if not client.add(self._url.read()):
            raise ValueError("url must be a URL that Apprise supports")
        return client
