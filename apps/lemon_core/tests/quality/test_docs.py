"""The Markdown link check. Specification lemon_core 16, "Docs links"."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.quality import docs
from lemon_core.tests.quality.trees import found, write_tree

PAGE = """\
# Guide

See [the other](other.md), [a part of it](other.md#part), [a folder](sub/) and
[the root](/README.md), [up](../README.md), ![a picture](sub/pic%20ture.png), [here](#here),
[by reference][ref], <https://lemon.invalid/x>, [mail](mailto:a@b.invalid) and
[the web](http://lemon.invalid/none.md).

`[in code](nowhere.md)`

    [in a block](nowhere.md)

```
[in a fence](nowhere.md)
```

[ref]: sub/deep.md
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(
        tmp_path,
        {
            "README.md": "[guide](docs/guide.md)",
            "docs/guide.md": PAGE,
            "docs/other.md": "",
            "docs/sub/deep.md": "[back](../guide.md)",
            "docs/sub/pic ture.png": "",
        },
    )


def test_links_that_resolve_and_links_that_are_not_local_pass(root: Path) -> None:
    assert docs.check(root).issues == ()


@pytest.mark.behaviour("lemon_core.43")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[gone](gone.md)", 1),
        ("one\ntwo [gone](gone.md#part)", 2),
        ("\n\n- item\n- [gone][r]\n\n[r]: /docs/gone.md", 4),
        ("![gone](sub/none.png)", 1),
        ("[out](../../etc/passwd)", 1),
        ("| a |\n|---|\n\n> [gone](gone.md)", 4),
        ("## A title with a [gone](gone.md)", 1),
    ],
)
def test_a_link_to_nothing_is_told_with_its_line(root: Path, text: str, line: int) -> None:
    write_tree(root, {"docs/sub/bad.md": text})
    assert found(docs.check(root)) == [("broken_link", f"docs/sub/bad.md:{line}")]


def test_readmes_are_looked_at_too(root: Path) -> None:
    write_tree(root, {"README.md": "[gone](gone.md)", "apps/app/README.md": "[gone](gone.md)"})
    assert found(docs.check(root)) == [
        ("broken_link", "README.md:1"),
        ("broken_link", "apps/app/README.md:1"),
    ]
