"""Markdown as a conversation shows it: headings on the left, no links that hide where they go."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown


class _Heading(Heading):
    """A heading as a line of text, not as a box across the screen."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Answer(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}  # noqa: RUF012  (rich's own form)


def markdown(text: str) -> Markdown:
    """`text` ready to be printed; its colours are those that the terminal's user chose."""
    return _Answer(text + "\n", code_theme="ansi_dark", hyperlinks=False)
