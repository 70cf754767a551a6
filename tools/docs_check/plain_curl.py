"""As much of `curl` as the documents use, for a machine that has none.

Options: `-s`, `-i`, `-X METHOD`, `-H "Name: value"`, `-d DATA`, `--data-urlencode NAME=VALUE`. An
answer that is no success is printed like any other, and the exit code is 0, as with curl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen


def main(argv: Sequence[str]) -> None:
    """Send one request and print what comes back."""
    parser = argparse.ArgumentParser(prog="curl")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-i", action="store_true")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data", action="append", default=[])
    parser.add_argument("--data-urlencode", dest="data", action="append", type=_encoded)
    parser.add_argument("url")
    asked = parser.parse_args(argv)
    data = "&".join(asked.data).encode() if asked.data else None
    request = Request(asked.url, data=data, method=asked.method)
    for header in asked.headers:
        name, _, value = header.partition(":")
        request.add_header(name.strip(), value.strip())
    try:
        answer = urlopen(request)
    except HTTPError as exc:
        answer = exc
    with answer:
        if asked.i:
            sys.stdout.write(f"HTTP/1.1 {answer.status} {answer.reason}\n{answer.headers}")
        sys.stdout.write(answer.read().decode(errors="replace"))


def _encoded(text: str) -> str:
    name, _, value = text.partition("=")
    return f"{name}={quote(value, safe='')}"


if __name__ == "__main__":
    main(sys.argv[1:])
