"""The connection to OpenSearch: explicit time-outs, no retries of the client's own, no secret in a message.

A client belongs to the process that made it: make targets after a worker has forked, never before.
"""

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import OpenSearch, Urllib3HttpConnection
from opensearchpy.exceptions import TransportError

from config.settings import Settings

CONNECT_POOL = 4  # connections kept open: a worker's bulk, refresh and search hardly overlap


class HeaderKeepingConnection(Urllib3HttpConnection):
    """Puts the server's Retry-After on the error it raises; the client's own drops all headers of a failed reply."""

    def perform_request(  # noqa: PLR0917 - the signature of the class we extend
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        ignore: Collection[int] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request; returns (status, headers, text) or raises the client's TransportError with `retry_after`."""
        every_status = range(300, 600)
        status, said, data = super().perform_request(method, url, params, body, timeout, every_status, headers)
        if status >= 300 and status not in ignore:
            lower = {name.lower(): value for name, value in said.items()}
            try:
                self._raise_error(status, data, lower.get("content-type"))
            except TransportError as error:
                error.retry_after = lower.get("retry-after")
                raise
        return status, said, data


def connect(settings: Settings) -> OpenSearch:
    """A client for the server in the settings. No request is sent yet. User and password only go with a password set.

    TLS certificates are checked against OPENSEARCH_CA, else against the system's.
    """
    parts = urlsplit(settings.opensearch_url)
    secret = settings.opensearch_password
    given = (parts.username, parts.password) if parts.username and parts.password else None
    secure = parts.scheme == "https"
    return OpenSearch(
        hosts=[
            {
                "host": parts.hostname or "127.0.0.1",
                "port": parts.port or (443 if secure else 9200),
                "url_prefix": parts.path.strip("/"),
            }
        ],
        http_auth=(settings.opensearch_user, secret.get_secret_value()) if secret is not None else given,
        use_ssl=secure,
        verify_certs=secure,
        ca_certs=str(settings.opensearch_ca) if secure and settings.opensearch_ca is not None else None,
        connection_class=HeaderKeepingConnection,
        max_retries=0,
        retry_on_timeout=False,
        timeout=settings.target_timeout,
        pool_maxsize=CONNECT_POOL,
    )
