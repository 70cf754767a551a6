"""A server on loopback that lists models in the manner of OpenAI, and takes one key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Vendor:
    """Where it is, and the requests that came: path and key."""

    base_url: str
    requests: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def vendor(key: str = "sk-good") -> Iterator[Vendor]:
    """The server for the block; another key than `key` gets 401."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("authorization", "").removeprefix("Bearer ")
            found.requests.append((self.path, given))
            document: object = {"data": [{"id": "m-1"}, {"id": "m-2"}]}
            status = 200
            if given != key:
                status, document = 401, {"error": {"message": f"bad key {given}"}}
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Vendor(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
