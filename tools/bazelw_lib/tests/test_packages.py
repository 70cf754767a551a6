"""Of Debian's closure only what runs Bazel is chosen."""

import pytest

from tools.bazelw_lib.packages import major, select, upstream_version


def test_bazel_its_jars_its_runtime_and_their_libraries_are_needed() -> None:
    needed = [
        "bazel-bootstrap", "bazel-bootstrap-data", "bazel-rules-python", "bubblewrap", "junit4",
        "libabsl20260526", "libblake3-0", "libc6", "libcares2", "libcap2", "libgcc-s1",
        "libgrpc++1.51t64", "libgrpc29t64", "libguava-java", "libjunixsocket-jni",
        "libpcre2-8-0", "libprotobuf32t64", "libre2-11", "libselinux1", "libssl3t64",
        "libstdc++6", "libzstd1", "libzstd-jni1", "openjdk-25-jre-headless", "patchelf",
        "python3-pip", "velocity", "zlib1g",
    ]  # fmt: skip
    assert select(needed, ["openjdk-25-jre-headless"]) == sorted(needed)


def test_compilers_interpreters_and_the_jdk_are_not_needed() -> None:
    assert select([
        "build-essential", "ca-certificates-java", "default-jdk-headless", "dpkg-dev", "g++-16",
        "gcc-16", "libc6-dev", "libgcc-16-dev", "libperl5.42", "libpython3.14-stdlib",
        "libstdc++-16-dev", "openjdk-25-jdk-headless", "perl", "python3.14",
        "protobuf-compiler-grpc-java-plugin", "zlib1g-dev",
    ], []) == []  # fmt: skip


def test_of_several_java_runtimes_the_default_one_is_chosen() -> None:
    closure = ["openjdk-17-jre-headless", "openjdk-25-jre-headless", "openjdk-26-jre-headless"]
    java = ["default-jre-headless", "openjdk-25-jre-headless", "java-common"]
    assert select(closure, java) == ["openjdk-25-jre-headless"]


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [("7.7.1+ds-8+b1", "7.7.1"), ("1:8.2~rc1-1", "8.2"), ("4.2.3+ds-10", "4.2.3")],
)
def test_debian_versions_carry_the_upstream_version(debian: str, upstream: str) -> None:
    assert upstream_version(debian) == upstream


def test_the_major_version_is_the_first_number() -> None:
    assert major("7.7.1") == "7"
