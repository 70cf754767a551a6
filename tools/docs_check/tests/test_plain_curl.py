"""The stand-in for curl says what curl says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tools.docs_check.plain_curl import main


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent; 401 without a token."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if self.headers.get("x-token") == "yes" else 401)
        self.end_headers()
        kind = self.headers["content-type"].encode()
        self.wfile.write(self.command.encode() + b" " + kind + b" " + body)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture(name="url")
def _url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_body_is_posted_and_the_answer_printed_whatever_it_is(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["-s", url, "-H", "X-Token: yes", "-d", "a body"])
    said = "POST application/x-www-form-urlencoded a body"
    assert capsys.readouterr().out == said
    main(["-s", url, "-H", "X-Token: yes", "-d", "a=1", "--data-urlencode", "b=x y&z"])
    assert capsys.readouterr().out.endswith(" a=1&b=x%20y%26z")
    main(["-s", "-i", url, "-d", "a body"])
    out = capsys.readouterr().out
    assert out.startswith("HTTP/1.1 401 ")
    assert out.endswith(f"\n{said}")
