"""The behaviour lists against the marks in tests, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.quality import behaviours
from lemon_core.tests.quality.trees import found, write_tree

LIST = "docs/behaviours/app.md"
MARKED = """\
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("app.1")]

@pytest.mark.behaviour("app.2")
async def test_two(): ...

@pytest.mark.behaviour("app.3", "app.7")
class TestThree:
    def test_one(self): ...

class TestFour:
    pytestmark = pytest.mark.behaviour("app.4")
    @pytest.mark.behaviour("app.5")
    @pytest.mark.parametrize("x", [1])
    def test_one(self, x): ...
"""
ITEMS = """\
# What app does

1. One.
2. Two,
   over two lines.
   Not yet: the second clause.
3. Three.
4. Four.
5. Five.
7. Seven.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(
        tmp_path,
        {"apps/app/BUILD.bazel": "", "apps/app/tests/test_x.py": MARKED, LIST: ITEMS},
    )


def test_lists_and_marks_that_agree_pass(root: Path) -> None:
    assert behaviours.check(root).issues == ()


def test_a_listed_behaviour_without_a_test_is_told(root: Path) -> None:
    write_tree(root, {LIST: ITEMS + "9. Nine.\n"})
    report = behaviours.check(root)
    assert found(report) == [("behaviour_without_test", f"{LIST}:11")]
    assert report.issues[0].message == "no test is marked with behaviour('app.9')"


def test_a_mark_that_no_list_knows_is_told(root: Path) -> None:
    write_tree(root, {LIST: ITEMS.replace("5. Five.\n", "")})
    report = behaviours.check(root)
    assert found(report) == [("unlisted_behaviour", "apps/app/tests/test_x.py:14")]
    assert report.issues[0].message == "app.5 is not listed in docs/behaviours/app.md"


@pytest.mark.parametrize("folder", ["tools/e2e", "apps/app/testing", "tools/release/tests"])
def test_marks_outside_the_app_and_in_suites_count(root: Path, folder: str) -> None:
    text = 'import pytest\n@pytest.mark.behaviour("app.8")\ndef test_x(): ...\n'
    write_tree(root, {LIST: ITEMS + "8. Eight.\n", f"{folder}/test_more.py": text})
    assert behaviours.check(root).ok


@pytest.mark.parametrize(
    "text",
    [
        '"""@pytest.mark.behaviour("app.9")"""\n',
        '# @pytest.mark.behaviour("app.9")\n',
        'import pytest\n@pytest.mark.behaviour("app.9")\ndef helper(): ...\n',
        'import pytest\npytest.mark.behaviour("app.9")\n',
    ],
)
def test_a_mark_that_reaches_no_test_does_not_count(root: Path, text: str) -> None:
    write_tree(root, {LIST: ITEMS + "9. Nine.\n", "apps/app/tests/test_y.py": text})
    assert found(behaviours.check(root)) == [("behaviour_without_test", f"{LIST}:11")]


@pytest.mark.parametrize(
    "argument", ["7", '"app"', '"app.x"', '"app.07"', "NAME", "", '"app.1", NAME']
)
def test_a_mark_that_names_no_behaviour_is_told(root: Path, argument: str) -> None:
    text = f"import pytest\n@pytest.mark.behaviour({argument})\ndef test_y(): ...\n"
    write_tree(root, {"apps/app/tests/test_y.py": text})
    assert found(behaviours.check(root)) == [("malformed_behaviour", "apps/app/tests/test_y.py:2")]


@pytest.mark.parametrize(
    "line", ["8) Eight.", "8.Eight.", " 8. Eight.", "8.", "7. Again.", "5. Late."]
)
def test_an_item_that_is_not_written_as_one_is_told(root: Path, line: str) -> None:
    write_tree(root, {LIST: ITEMS + line + "\n"})
    codes = {code for code, path in found(behaviours.check(root)) if path == f"{LIST}:11"}
    assert "malformed_behaviour" in codes


def test_a_list_of_an_app_that_is_not_there_is_told(root: Path) -> None:
    write_tree(root, {"docs/behaviours/gone.md": "# Nothing\n"})
    assert found(behaviours.check(root)) == [("unknown_app", "docs/behaviours/gone.md")]
