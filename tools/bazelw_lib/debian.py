"""Unpacks Debian's own Bazel into the user's cache folder, once."""

import shutil
import subprocess

from tools.bazelw_lib import apt_sources, launcher, packages
from tools.bazelw_lib.apt_state import AptState
from tools.bazelw_lib.exclusive import exclusive
from tools.bazelw_lib.paths import Bundle, Cache, Workspace
from tools.bazelw_lib.prefix import Prefix
from tools.bazelw_lib.report import REMEDY, BazelwError, say

# Only the development suite has a Bazel that knows MODULE.bazel (Debian 12 and 13: 4.2.3).
SUITE = "sid"


def ensure(cache: Cache, workspace: Workspace) -> Bundle:
    """Return an unpacked Bazel of the workspace's major version, unpacking it if need be."""
    bundle = cache.bundle(packages.major(workspace.bazel_version))
    if bundle.ready.exists():
        return bundle
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise BazelwError(f"no Bazel here, and without {tool} none can be unpacked; {REMEDY}")
    with exclusive(cache.lock):
        # Another process may have finished while this one waited.
        if not bundle.ready.exists():
            _build(bundle, cache, workspace)
    return bundle


def _build(bundle: Bundle, cache: Cache, workspace: Workspace) -> None:
    say("no Bazel on this machine: unpacking Debian's into the cache folder (once)")
    apt = AptState(cache.home / "bazel" / "apt")
    names = _choose(apt, workspace)
    files = apt.planned(names)
    total = sum(files.values())
    say(f"downloading {len(files)} packages, {total / 1e6:.0f} MB")
    folder = apt.download(names, lambda done: say(f"  {done / 1e6:.0f} of {total / 1e6:.0f} MB"))
    # By name: an earlier, interrupted try may have left another version of a package there.
    debs = [folder / file for file in sorted(files)]

    # A folder without its READY file was interrupted between rename and check.
    shutil.rmtree(bundle.home, ignore_errors=True)
    staged = Bundle(bundle.home.with_name(bundle.home.name + ".partial"))
    shutil.rmtree(staged.home, ignore_errors=True)
    say("unpacking and adapting them")
    prefix = Prefix(staged=staged.root, final=bundle.root)
    prefix.unpack(debs)
    prefix.relink()
    prefix.patch_programs()
    prefix.rewrite_class_path()
    _separate_pip(staged)
    rc = launcher.rc_text(bundle, cache, prefix.java_home(), prefix.module_overrides())
    staged.rc.write_text(rc, encoding="utf-8")
    staged.home.rename(bundle.home)

    version = _check(bundle, cache)
    bundle.ready.write_text(version + "\n", encoding="utf-8")
    shutil.rmtree(apt.home, ignore_errors=True)
    say(f"Bazel {version} is ready")


def _choose(apt: AptState, workspace: Workspace) -> list[str]:
    """Find an archive that has the wanted Bazel and return the names of what to fetch."""
    reason = "apt on this machine knows no Debian archive"
    for source in apt_sources.machine_archives():
        apt.prepare(source.for_suite(SUITE))
        say(f"reading the package list of Debian {SUITE}")
        try:
            apt.update()
            version = apt.version(packages.BAZEL)
        except BazelwError as error:
            reason = str(error).removesuffix(f"; {REMEDY}")
            continue
        if version is None:
            reason = f"the archive's suite {SUITE} has no {packages.BAZEL}"
            continue
        wanted = packages.major(workspace.bazel_version)
        offered = packages.upstream_version(version)
        if packages.major(offered) != wanted:
            raise BazelwError(
                f"Debian {SUITE} has moved on to Bazel {offered}, this workspace needs {wanted}.x; "
                + REMEDY
            )
        return _closure(apt)
    raise BazelwError(f"{reason}; {REMEDY}")


def _closure(apt: AptState) -> list[str]:
    blake3 = [name for name in apt.known("libblake3-") if packages.BLAKE3.fullmatch(name)]
    wanted = [packages.BAZEL, *packages.EXTRA, *blake3]
    java = apt.dependencies([packages.DEFAULT_JAVA], recurse=False)
    return packages.select(apt.dependencies(wanted), java)


def _separate_pip(staged: Bundle) -> None:
    # pip gets a folder of its own: dist-packages would put Debian's other modules on the path too.
    source = staged.root / "usr/lib/python3/dist-packages/pip"
    if source.is_dir():
        staged.pip_path.mkdir(parents=True)
        source.rename(staged.pip_path / "pip")


def _check(bundle: Bundle, cache: Cache) -> str:
    """Start the unpacked Bazel's server once and return the client's version."""
    scratch = cache.home / "bazel" / "check"
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "workspace").mkdir(parents=True)
    (scratch / "workspace" / "MODULE.bazel").touch()
    server = [
        str(bundle.bazel),
        "--nosystem_rc",
        "--nohome_rc",
        f"--bazelrc={bundle.rc}",
        f"--output_user_root={scratch / 'output'}",
    ]

    def answer(*arguments: str) -> str:
        done = subprocess.run(
            arguments,
            cwd=scratch / "workspace",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BazelwError(f"the unpacked Bazel does not start ({reason}); {REMEDY}")
        return done.stdout.strip()

    try:
        # Debian's build does not know its own release, so `bazel version` fails: any answer of
        # the server will do.
        answer(*server, "info", "server_pid")
        return answer(*server, "--version").removeprefix("bazel ")
    except subprocess.TimeoutExpired as error:
        raise BazelwError(f"the unpacked Bazel does not answer; {REMEDY}") from error
    finally:
        subprocess.run(
            [*server, "shutdown"],
            cwd=scratch / "workspace",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        shutil.rmtree(scratch, ignore_errors=True)
