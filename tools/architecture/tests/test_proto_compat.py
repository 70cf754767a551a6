"""Every way to break a contract is told, and the allowed ways are not. STYLE, "Contracts"."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc_tools import protoc

from tools.architecture import proto_compat

BASE = """\
syntax = "proto3";
package lemon.test.v1;
message Run {
  reserved 3, 10 to 12, 1000 to max;
  reserved "engine";
  string run_id = 1;
  optional int32 count = 2;
  repeated Run children = 4;
  Lane lane = 5;
  oneof body { string text = 6; bytes blob = 7; }
  message Inner { bool on = 1; }
  map<string, int32> sizes = 8;
}
enum Lane { LANE_UNSPECIFIED = 0; LANE_MAIN = 1; }
service Runs {
  rpc Get(Run) returns (Run);
  rpc Watch(Run) returns (stream Run);
}
"""


def _compiled(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "x.proto").write_text(text, "utf-8")
    target = folder / "x.binpb"
    code = protoc.main(
        ["protoc", f"--proto_path={folder}", f"--descriptor_set_out={target}", "x.proto"]
    )
    assert code == 0
    return target


def _findings(tmp_path: Path, text: str) -> list[str]:
    old = proto_compat.load(_compiled(tmp_path / "old", BASE))
    new = proto_compat.load(_compiled(tmp_path / "new", text))
    return list(proto_compat.compare(old, new))


def test_the_same_contract_has_no_finding(tmp_path: Path) -> None:
    assert _findings(tmp_path, BASE + "// Only a comment.\n") == []


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        (
            "  string run_id = 1;\n",
            "",
            'lemon.test.v1.Run.run_id: removed without `reserved 1; reserved "run_id";`',
        ),
        (
            "  string run_id = 1;\n",
            "  reserved 1;\n",
            'lemon.test.v1.Run.run_id: removed without `reserved "run_id";`',
        ),
        (
            "string run_id = 1",
            "string run_id = 9",
            "lemon.test.v1.Run.run_id: number 1 became 9; numbers never change",
        ),
        (
            "string run_id = 1",
            "string id = 1",
            "lemon.test.v1.Run: number 1 was run_id and is id; take a new number",
        ),
        (
            "string run_id = 1",
            "bytes run_id = 1",
            "lemon.test.v1.Run.run_id: was `plain string` and is `plain bytes`",
        ),
        (
            "string run_id = 1",
            "repeated string run_id = 1",
            "lemon.test.v1.Run.run_id: was `plain string` and is `repeated string`",
        ),
        (
            "optional int32 count",
            "int32 count",
            "lemon.test.v1.Run.count: was `optional int32` and is `plain int32`",
        ),
        (
            "Lane lane",
            "Run lane",
            "lemon.test.v1.Run.lane: was `plain lemon.test.v1.Lane` "
            "and is `plain lemon.test.v1.Run`",
        ),
        (
            "string text = 6; bytes blob = 7; }",
            "bytes blob = 7; } string text = 6;",
            "lemon.test.v1.Run.text: was `plain string in oneof body` and is `plain string`",
        ),
        (
            "map<string, int32>",
            "map<string, int64>",
            "lemon.test.v1.Run.SizesEntry.value: was `plain int32` and is `plain int64`",
        ),
        (
            "10 to 12",
            "10 to 11",
            "lemon.test.v1.Run: number 12 is reserved no more",
        ),
        (
            "1000 to max",
            "2000 to max",
            "lemon.test.v1.Run: number 1000 is reserved no more",
        ),
        ('  reserved "engine";\n', "", 'lemon.test.v1.Run: the name "engine" is reserved no more'),
        (
            " LANE_MAIN = 1;",
            "",
            'lemon.test.v1.Lane.LANE_MAIN: removed without `reserved 1; reserved "LANE_MAIN";`',
        ),
        (
            "  rpc Get(Run) returns (Run);\n",
            "",
            "lemon.test.v1.Runs.Get: the method is gone",
        ),
        (
            "returns (stream Run)",
            "returns (Run)",
            "lemon.test.v1.Runs.Watch: was "
            "`(lemon.test.v1.Run) returns (stream lemon.test.v1.Run)` "
            "and is `(lemon.test.v1.Run) returns (lemon.test.v1.Run)`",
        ),
        (
            "  message Inner { bool on = 1; }\n",
            "",
            "lemon.test.v1.Run.Inner: the message is gone; "
            "a breaking change is a new version beside it",
        ),
    ],
)
def test_a_break_is_told(tmp_path: Path, before: str, after: str, finding: str) -> None:
    assert before in BASE
    assert _findings(tmp_path, BASE.replace(before, after)) == [finding]


def test_a_removed_field_whose_number_and_name_are_reserved_only_needs_accepting(
    tmp_path: Path,
) -> None:
    text = BASE.replace("  string run_id = 1;\n", '  reserved 1;\n  reserved "run_id";\n')
    assert _findings(tmp_path, text) == [
        "lemon.test.v1.Run (reservation): not accepted yet; run `bazel run //protos:accept`"
    ]


def test_new_things_have_to_be_accepted(tmp_path: Path) -> None:
    text = BASE.replace("string run_id = 1;", "string run_id = 1; string more = 9;")
    text += "message Second {}\n"
    assert _findings(tmp_path, text) == [
        "lemon.test.v1.Run.more: not accepted yet; run `bazel run //protos:accept`",
        "lemon.test.v1.Second (message): not accepted yet; run `bazel run //protos:accept`",
    ]


def test_the_check_prints_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = str(_compiled(tmp_path / "old", BASE))
    new = str(_compiled(tmp_path / "new", BASE.replace("Watch", "Observe")))
    assert proto_compat.main(["check", old, old]) == 0
    assert proto_compat.main(["check", old, new]) == 1
    assert "lemon.test.v1.Runs.Watch: the method is gone" in capsys.readouterr().out


def test_accepting_writes_the_file_into_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = _compiled(tmp_path / "new", BASE)
    (tmp_path / "protos").mkdir()
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    assert proto_compat.main(["accept", str(new)]) == 0
    assert (tmp_path / proto_compat.ACCEPTED).read_bytes() == new.read_bytes()
