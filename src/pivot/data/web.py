"""Images that rows name by URL, downloaded only where the user allows it (`data.allow_urls`).

A row of a data set must not make this machine talk to its own network: every address that a host name stands for must
be public, the connection goes to an address that was checked, and each redirect is checked again. Time and size are
bounded.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from urllib.parse import SplitResult, urljoin, urlsplit

MAX_BYTES = 1 << 25
"""A download of more than 32 MiB is not an image of a data set."""
SECONDS = 20.0
"""For one image, redirects included."""
MAX_REDIRECTS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE = 1 << 16

Allowed = Callable[[str], bool]
"""Whether an IP address may be connected to."""


class DownloadError(Exception):
    """A download that was refused or failed; the message is the reason."""


def is_public(address: str) -> bool:
    """False for private, loopback, link-local and reserved addresses, in either notation."""
    found = ipaddress.ip_address(address)
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (inner is None or inner.is_global)


def download(url: str, allowed: Allowed = is_public, seconds: float = SECONDS) -> bytes:
    """The content at an http or https URL; raises `DownloadError`."""
    deadline = time.monotonic() + seconds
    for _ in range(MAX_REDIRECTS + 1):
        answer = _get(url, allowed, deadline)
        if isinstance(answer, bytes):
            return answer
        url = urljoin(url, answer)
    raise DownloadError(f"more than {MAX_REDIRECTS} redirects")


def _get(url: str, allowed: Allowed, deadline: float) -> bytes | str:
    """The content, or where a redirect leads."""
    parts = _parts(url)
    try:
        connection = _connect(parts, allowed, deadline)
        try:
            target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
            connection.request("GET", target, headers={"User-Agent": "pivot-rl", "Accept": "image/*"})
            response = connection.getresponse()
            if response.status in _REDIRECTS:
                return response.getheader("Location") or ""
            if response.status != http.client.OK:
                raise DownloadError(f"the server answers {response.status}")
            return _read(response, connection, deadline)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, UnicodeError) as broken:
        raise DownloadError(str(broken) or type(broken).__name__) from broken


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as broken:
        raise DownloadError("not a URL") from broken
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise DownloadError("not an http or https URL")
    if parts.username is not None or not url.isascii() or any(char <= " " for char in url):
        raise DownloadError("a URL with a user name or with characters that must be quoted")
    return parts


def _connect(parts: SplitResult, allowed: Allowed, deadline: float) -> http.client.HTTPConnection:
    """A connection to one of the host's addresses, all of which must be allowed."""
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not addresses or not all(map(allowed, addresses)):
        raise DownloadError("the host is not a public address")
    left = _left(deadline)
    plain = socket.create_connection((addresses[0], port), timeout=left)
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=left)
    if parts.scheme == "https":
        plain = ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
    connection.sock = plain
    return connection


def _read(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float
) -> bytes:
    content = bytearray()
    while piece := response.read1(_PIECE):
        content += piece
        if len(content) > MAX_BYTES:
            raise DownloadError(f"more than {MAX_BYTES:,} bytes")
        left = _left(deadline)
        if connection.sock is not None:
            connection.sock.settimeout(left)
    return bytes(content)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DownloadError("the server takes too long")
    return left
