"""Downloads of images: what is refused before a byte is sent, and what is bounded, with a real server."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pivot.data import web
from pivot.data.web import DownloadError, download, is_public


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        place = {"/moved": "/image", "/inside": "http://127.0.0.2:9/secret", "/circle": "/circle"}.get(
            self.path
        )
        self.send_response(404 if self.path == "/missing" else 200 if place is None else 302)
        if place is not None:
            self.send_header("Location", place)
        self.end_headers()
        if self.path == "/slow":
            with suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(40):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.05)
        elif place is None:
            self.wfile.write(b"picture" if self.path == "/image" else b"x" * (web.MAX_BYTES + 1))

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    found = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()


def local(address: str) -> bool:
    """In the tests one private address counts as public."""
    return address == "127.0.0.1"


def test_a_download_and_a_redirect(server: str) -> None:
    assert download(f"{server}/image", local) == b"picture"
    assert download(f"{server}/moved", local) == b"picture"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/inside", "not a public address"),
        ("/circle", "more than 4 redirects"),
        ("/large", "more than 33,554,432 bytes"),
        ("/missing", "answers 404"),
        ("/a b", "must be quoted"),
    ],
)
def test_what_is_refused(server: str, path: str, reason: str) -> None:
    with pytest.raises(DownloadError, match=reason):
        download(f"{server}{path}", local)


def test_a_slow_server_is_left(server: str) -> None:
    with pytest.raises(DownloadError, match=r"too long|timed out"):
        download(f"{server}/slow", local, seconds=0.3)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/a", "http://localhost/a", "http://[::1]/a", "http://10.0.0.1/a", "http://169.254.169.254/latest",
     "http://[::ffff:127.0.0.1]/a", "http://0.0.0.0/a", "http://2130706433/a"],
)  # fmt: skip
def test_private_addresses_are_refused(url: str) -> None:
    with pytest.raises(DownloadError, match="not a public address"):
        download(url)


@pytest.mark.parametrize(
    "url", ["ftp://example.org/a", "http:///a", "http://user@example.org/a", "http://[bad/a"]
)
def test_urls_of_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(DownloadError):
        download(url, lambda _: pytest.fail("an address was asked for"))


def test_which_addresses_are_public() -> None:
    assert [is_public(a) for a in ("8.8.8.8", "2606:4700::1111")] == [True, True]
    private = ("192.168.1.1", "fd00::1", "fe80::1", "224.0.0.1", "100.64.0.1", "2002:7f00:1::", "::")
    assert not any(map(is_public, private))
