"""Which of Debian's packages are needed to run Bazel, and nothing beside them."""

import re
from collections.abc import Iterable

BAZEL = "bazel-bootstrap"
DEFAULT_JAVA = "default-jre-headless"
# patchelf comes from the same suite rather than from PyPI, so that unpacking needs no pip.
# python3-pip is for a Python that came without pip; bubblewrap for a host that has none.
EXTRA = ("patchelf", "bubblewrap", "python3-pip")
# Bazel's JNI library loads it and no package depends on it.
BLAKE3 = re.compile(r"libblake3-\d+")

# The rest of the closure is compilers, Perl, a second Python and a JDK: 400 MB that never run.
_NEEDED = re.compile(
    r"""
    bazel-.+ | .+-java | lib.+-jni\d* | velocity | junit4 | openjdk-\d+-jre-headless
    | patchelf | bubblewrap | python3-pip
    # what the binaries above load
    | libc6 | libgcc-s1 | libstdc\+\+6 | zlib1g | libzstd1 | libssl\d.* | libcares\d+
    | libabsl.+ | libblake3-\d+ | libgrpc\d.* | libgrpc\+\+.+ | libprotobuf\d.* | libre2-.+
    | libcap2 | libselinux1 | libpcre2-8-0
    """,
    re.VERBOSE,
)
_JAVA = re.compile(r"openjdk-\d+-jre-headless")
_UNNEEDED = re.compile(r".+-dev(el)?|ca-certificates-java|.+-grpc-java-plugin|async-profiler-java")


def select(closure: Iterable[str], java: Iterable[str]) -> list[str]:
    """Return the names out of the whole closure that running Bazel needs, sorted.

    The closure names every Java runtime that would do; `java` names the suite's default one.
    """
    defaults = {name for name in java if _JAVA.fullmatch(name)}
    return sorted(
        name
        for name in set(closure)
        if _NEEDED.fullmatch(name)
        and not _UNNEEDED.fullmatch(name)
        and (name in defaults or not _JAVA.fullmatch(name))
    )


def upstream_version(debian_version: str) -> str:
    """Return `7.7.1` for `1:7.7.1+ds-8+b1`."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", debian_version)
    return match.group(1) if match else debian_version


def major(version: str) -> str:
    """Return the part before the first dot."""
    return version.partition(".")[0]
