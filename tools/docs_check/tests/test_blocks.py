"""What a console block says."""

from __future__ import annotations

import textwrap

import pytest

from tools.docs_check.blocks import BlockError, Step, shows, steps

DOCUMENT = """\
Text, and `$ not a command`.

```console
$ lemon run "Say hello"
Hello…
there

$ cat <<END
> two
> END
two
$ false
# exit 1
$ true
```

```sh
$ of another kind
```

1. In a list:

   ```console
   $ lemon --version
   lemon 0.1.0
   ```
"""


def test_commands_output_and_exit_codes_in_order() -> None:
    assert steps(DOCUMENT) == [
        Step(4, 'lemon run "Say hello"', ("Hello…", "there")),
        Step(8, "cat <<END\ntwo\nEND", ("two",)),
        Step(12, "false", code=1),
        Step(14, "true"),
        Step(24, "lemon --version", ("lemon 0.1.0",)),
    ]


@pytest.mark.parametrize("content", ["output\n$ ls", ""])
def test_a_block_begins_with_a_command(content: str) -> None:
    with pytest.raises(BlockError, match="line 2: a console block begins with a command"):
        steps(f"```console\n{content}\n```\n")


def test_what_runs_in_the_background() -> None:
    assert Step(1, "lemon start &").in_background
    assert not Step(1, "true &&").in_background
    assert not Step(1, "echo a & b").in_background


@pytest.mark.parametrize(
    ("output", "actual"),
    [
        (["a", "b"], "a\nb\n"),
        (["a  ", "b"], "a \nb"),
        (["a…z"], "a to z\n"),
        (["process ...)."], "process 12).\n"),
        (["first", "…", "last"], "first\nlast\n"),
        (["first", "...", "last"], "first\n2\n3\nlast\n"),
        (["…"], ""),
        (["(a|b)*"], "(a|b)*"),
    ],
)
def test_output_that_is_shown(output: list[str], actual: str) -> None:
    assert shows(output, actual)


@pytest.mark.parametrize(
    ("output", "actual"),
    [
        (["a"], "a\nb\n"),
        (["a", "b"], "a\n"),
        (["a…z"], "a to\nz\n"),
        (["a"], "A"),
        (["first", "…"], "second\nfirst\n"),
    ],
)
def test_output_that_is_not(output: list[str], actual: str) -> None:
    assert not shows(output, actual)


def test_an_indented_block_is_text() -> None:
    assert steps(textwrap.indent("```console\n$ ls\n```\n", "    ")) == []
