"""The class path follows manifests and moves with the folder."""

import zipfile
from pathlib import Path

from tools.bazelw_lib.classpath import manifest_class_path, rewrite


def jar(path: Path, class_path: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    manifest = "Manifest-Version: 1.0\r\n"
    if class_path:
        manifest += f"Class-Path: {class_path}\r\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", manifest)
    return path


def test_a_folded_manifest_line_is_read_as_one(tmp_path: Path) -> None:
    made = jar(tmp_path / "a.jar", "first.jar sec\r\n ond.jar")
    assert manifest_class_path(made) == ["first.jar", "second.jar"]


def test_a_file_that_is_no_jar_names_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jar"
    broken.write_bytes(b"not a zip")
    assert manifest_class_path(broken) == []


def test_jars_of_manifests_are_added_and_all_paths_lead_to_the_final_folder(
    tmp_path: Path,
) -> None:
    staged, final = tmp_path / "staged", Path("/final")
    java = staged / "usr/share/java"
    jar(java / "grpc.jar", "deep/perfmark.jar /usr/share/java/absolute.jar missing.jar")
    jar(java / "deep/perfmark.jar", "../grpc.jar ../last.jar")
    jar(java / "absolute.jar")
    jar(java / "last.jar")
    listed = tmp_path / "list.txt"
    listed.write_text("/usr/share/java/grpc.jar\n/usr/share/java/gone.jar\n")

    rewrite(listed, staged, final)

    assert listed.read_text().splitlines() == [
        "/final/usr/share/java/grpc.jar",
        "/final/usr/share/java/deep/perfmark.jar",
        "/final/usr/share/java/absolute.jar",
        "/final/usr/share/java/last.jar",
    ]
