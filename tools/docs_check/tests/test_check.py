"""Documents that are true, and documents that are not, in a real shell."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from tools.docs_check.blocks import steps
from tools.docs_check.check import Place, Problem, check, clone_folder
from tools.docs_check.shell import lives

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root, work, scratch = (tmp_path / name for name in ("root", "work", "scratch"))
    for folder in (root / "tools", work, scratch):
        folder.mkdir(parents=True)
    (root / "tools" / "bazelw").touch()
    (root / "tools" / "BUILD.bazel").write_text('py_binary(name = "x")\n', encoding="utf-8")
    return Place(root, work, scratch, {"PATH": os.environ["PATH"], "LC_ALL": "C"})


async def problems(place: Place, typed: str, *, limit_s: float = 30.0) -> list[Problem]:
    with anyio.fail_after(40):
        return await check(steps(f"```console\n{typed}```\n"), place, limit_s=limit_s)


async def test_a_true_document_has_no_problem(place: Place) -> None:
    typed = """\
$ name=you; mkdir -p sub
$ cd sub
$ echo "hello $name"; pwd
hello you
/…/sub
$ cat <<END >file.txt
> one
> two
> END
$ cat file.txt
one
…
$ cat
$ ls missing
ls: …
# exit 2
$ false
# exit 1
"""
    assert await problems(place, typed) == []
    assert (place.work / "sub" / "file.txt").is_file()


async def test_other_output_and_another_exit_code_are_problems(place: Place) -> None:
    found = await problems(place, "$ echo a\nb\n$ false\n$ true\n# exit 3\n$ echo 'open\n")
    assert [problem.line for problem in found] == [2, 4, 5, 7]
    assert found[0].text == "`echo a` said:\na\nwhere the document shows:\nb"
    assert found[1].text == "`false` ended with 1, not 0:\n"
    assert found[2].text == "`true` ended with 0, not 3:\n"
    assert found[3].text.startswith("`echo 'open` ended with ")


async def test_a_command_that_hangs_or_leaves_is_the_last(place: Place) -> None:
    (hung,) = await problems(place, "$ echo begun; sleep 100\n$ true\n", limit_s=0.5)
    assert (hung.line, hung.text.splitlines()[-1]) == (2, "begun")
    (left,) = await problems(place, "$ exit 0\n$ false\n")
    assert "ended the shell" in left.text


async def test_a_background_program_is_waited_for_and_ended(place: Place) -> None:
    typed = """\
$ sh -c 'echo $$ >pid; echo starting; sleep 0.2; echo ready; exec sleep 100' &
starting
ready
$ cat pid
…
"""
    assert await problems(place, typed) == []
    pid = int((place.work / "pid").read_text(encoding="utf-8"))
    assert not lives(pid)


async def test_a_background_program_that_never_says_so_is_a_problem(place: Place) -> None:
    (problem,) = await problems(place, "$ sleep 100 &\nready\n", limit_s=0.3)
    assert "where the document shows:\nready" in problem.text


async def test_bazel_and_clones_are_looked_at_and_not_run(place: Place) -> None:
    typed = """\
$ git clone https://example.org/lemon.git
$ cd lemon
$ git clone --depth=1 https://example.org/lemon other
$ cd other
$ CI=1 tools/bazelw run //tools:x -- //not/a:label
any output
$ ./tools/bazelw test //...
"""
    assert await problems(place, typed) == []
    assert (place.work / "lemon" / "other").is_dir()


async def test_labels_that_are_missing_and_joined_lines_are_problems(place: Place) -> None:
    typed = """\
$ tools/bazelw test //tools:y //none/...
$ tools/bazelw run //tools:x && touch ran
$ git clone
"""
    assert [(problem.line, problem.text) for problem in await problems(place, typed)] == [
        (2, "//tools:y: tools/BUILD.bazel has no target y"),
        (2, "//none/...: no package below none/"),
        (3, "`tools/bazelw` is not run here: what follows `&&` belongs on its own line"),
        (4, "`git clone` of what?"),
    ]
    assert not (place.work / "ran").exists()


async def test_without_the_wrapper_no_bazel_line_is_true(place: Place) -> None:
    (place.root / "tools" / "bazelw").unlink()
    (problem,) = await problems(place, "$ tools/bazelw test //tools:x\n")
    assert problem.text == "tools/bazelw is not there"


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["git", "clone", "https://example.org/a/lemon.git"], "lemon"),
        (["git", "clone", "-q", "https://example.org/a/lemon/", "here"], "here"),
    ],
)
def test_where_a_clone_goes(words: list[str], folder: str) -> None:
    assert clone_folder(words) == folder
