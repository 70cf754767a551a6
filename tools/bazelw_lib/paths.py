"""Where the workspace is and what lies in the user's cache folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Raise when the recipe changes, so that an older unpacked folder is not taken for a new one.
RECIPE = 2


def cache_home(environ: Mapping[str, str]) -> Path:
    """Return the folder for caches: `$XDG_CACHE_HOME`, else `~/.cache`, with `lemon` appended."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative value must be ignored.
    if not base.startswith("/"):
        base = str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "lemon"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The clone that this `tools/bazelw` belongs to."""

    root: Path

    @property
    def bazel_version(self) -> str:
        """The wanted version, from `.bazelversion`."""
        return (self.root / ".bazelversion").read_text(encoding="utf-8").strip()

    @property
    def offline_rc(self) -> Path:
        """Stands in for the modules that only a registry has; for Debian's Bazel alone."""
        return self.root / "third_party" / "offline" / "bazelrc"


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache folder, shared by all clones of one user."""

    home: Path

    def bundle(self, major: str) -> "Bundle":
        """Return the place of Debian's Bazel of that major version."""
        return Bundle(self.home / "bazel" / f"debian-{major}-r{RECIPE}")

    def libraries(self, codename: str) -> Path:
        """Return the folder of shared libraries that fit that release of Debian."""
        return self.home / "bazel" / f"libraries-{codename}"

    @property
    def lock(self) -> Path:
        return self.home / "bazel" / "lock"

    @property
    def disk(self) -> Path:
        """Bazel's action cache."""
        return self.home / "bazel-disk"

    @property
    def repositories(self) -> Path:
        """Bazel's download cache."""
        return self.home / "bazel-repositories"


@dataclass(frozen=True, slots=True)
class Bundle:
    """One unpacked Bazel: the file tree of the packages and what starts it."""

    home: Path

    @property
    def root(self) -> Path:
        """The packages' own tree (`usr/…`, `etc/…`)."""
        return self.home / "root"

    @property
    def bazel(self) -> Path:
        return self.root / "usr/bin/bazel"

    @property
    def bwrap(self) -> Path:
        return self.root / "usr/bin/bwrap"

    @property
    def patchelf(self) -> Path:
        return self.root / "usr/bin/patchelf"

    @property
    def rc(self) -> Path:
        return self.home / "bazelrc"

    @property
    def pip_path(self) -> Path:
        """A folder for `PYTHONPATH` that holds pip and nothing else."""
        return self.home / "pip"

    @property
    def ready(self) -> Path:
        """Written last, after this Bazel has answered: the bundle is whole."""
        return self.home / "READY"
