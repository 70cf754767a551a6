"""The README's example runs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lemon_ai.testing import FakeChatServer, Turn

pytestmark = pytest.mark.anyio

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


async def test_the_example_answers(
    server: FakeChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Callable[[str, str], Awaitable[str]]] = {}
    exec(compile(source, "README.md", "exec"), names)  # noqa: S102 (the text of this repository)
    server.enqueue(Turn(text="A lemon is yellow."))
    assert await names["ask"](server.base_url, "What is a lemon?") == "stop"
    assert capsys.readouterr().out == "A lemon is yellow."
    assert server.requests[0].last_text == "What is a lemon?"
