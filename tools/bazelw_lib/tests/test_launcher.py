"""What starts Debian's Bazel."""

from pathlib import Path

from tools.bazelw_lib import launcher
from tools.bazelw_lib.paths import Bundle, Cache, Workspace

CACHE = Cache(Path("/home/ada/.cache/lemon"))


def test_the_rc_file_names_the_unpacked_parts_and_the_shared_caches() -> None:
    bundle = CACHE.bundle("7")
    text = launcher.rc_text(bundle, CACHE, Path("/jre"), ["platforms=/p"])
    assert text.splitlines() == [
        f"startup --install_base={bundle.root}/usr/share/bazel",
        "startup --trust_install_base",
        "startup --server_javabase=/jre",
        "common --override_module=platforms=/p",
        "common --disk_cache=/home/ada/.cache/lemon/bazel-disk",
        "common --experimental_disk_cache_gc_max_size=10G",
        "common --repository_cache=/home/ada/.cache/lemon/bazel-repositories",
    ]


def test_a_home_below_tmp_is_shown_to_the_sandbox() -> None:
    cache = Cache(Path("/tmp/home/.cache/lemon"))
    bundle = cache.bundle("7")
    text = launcher.rc_text(bundle, cache, Path("/jre"), [])
    assert f"common --sandbox_add_mount_pair={bundle.home}" in text.splitlines()


def test_arguments_are_passed_on_after_the_rc_files() -> None:
    bundle = Bundle(Path("/b"))
    workspace = Workspace(Path("/w"))
    assert launcher.command(bundle, workspace, ["test", "//..."]) == [
        "/b/root/usr/bin/bazel",
        "--nosystem_rc",
        "--bazelrc=/b/bazelrc",
        "--bazelrc=/w/third_party/offline/bazelrc",
        "test",
        "//...",
    ]


def test_the_environment_offers_what_the_machine_lacks(tmp_path: Path) -> None:
    bundle = Bundle(Path("/b"))
    assert launcher.environment(bundle, Path("/l"), {"PATH": str(tmp_path)}) == {
        "PATH": str(tmp_path),
        "LEMON_PIP_PATH": "/b/pip",
        "LEMON_PATCHELF": "/b/root/usr/bin/patchelf",
        "LEMON_LIBRARIES": "/l",
        "LEMON_BWRAP": "/b/root/usr/bin/bwrap",
    }


def test_what_the_machine_has_is_not_offered_and_what_the_user_set_stays(tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.touch()
    bwrap.chmod(0o755)
    environ = {"PATH": str(tmp_path), "LEMON_PIP_PATH": "/mine"}
    given = launcher.environment(Bundle(Path("/b")), None, environ)
    assert given == {**environ, "LEMON_PATCHELF": "/b/root/usr/bin/patchelf"}
