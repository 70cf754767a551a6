"""The private apt's answers."""

from tools.bazelw_lib.apt_state import parse_dependencies, parse_uris

DEPENDS = """\
bazel-bootstrap
  Depends: bazel-bootstrap-data
 |Depends: default-jdk-headless
  Depends: <java-runtime>
    openjdk-25-jre-headless
  PreDepends: libc6:amd64
bazel-bootstrap-data
<java-runtime>
libgrpc++1.51t64
"""


def test_dependencies_are_named_once_and_virtual_packages_not() -> None:
    assert parse_dependencies(DEPENDS) == [
        "bazel-bootstrap",
        "bazel-bootstrap-data",
        "default-jdk-headless",
        "openjdk-25-jre-headless",
        "libc6",
        "libgrpc++1.51t64",
    ]


def test_planned_files_have_name_and_size() -> None:
    text = """\
'http://mirror.example/pool/libnetty.deb' libnetty-java_1%3a4.1.48-16_all.deb 2864168 SHA256:ab
Reading package lists...
'http://mirror.example/pool/zlib1g.deb' zlib1g_1.3_amd64.deb 90000
"""
    assert parse_uris(text) == {
        "libnetty-java_1%3a4.1.48-16_all.deb": 2864168,
        "zlib1g_1.3_amd64.deb": 90000,
    }
