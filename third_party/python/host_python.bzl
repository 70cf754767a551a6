"""One Python interpreter, chosen once, for every action, test and tool of the workspace.

Without it the autodetecting toolchain takes whichever `python3` is first on PATH at each moment,
and compiled packages installed for one Python fail to import in another.

Programs start it through a virtual environment without packages: what happens to be installed for
the host's Python (an old pytest plugin, say) is not there, so a missing dependency shows on every
machine. The environment is two files in the runfiles, so no path of an output base enters the cache.
"""

_OLDEST = "(3, 11)"

# Printed by the interpreter itself: `python3` may be a shim (pyenv) or a virtual environment.
_PROBE = """
import os, sys
print(os.path.realpath(sys.executable) if sys.version_info >= %s else "")
print("%%d.%%d" %% sys.version_info[:2])
""" % _OLDEST

_BUILD = """\
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files(["interpreter_path.txt"])

py_runtime(
    name = "runtime",
    files = ["venv/pyvenv.cfg"],
    interpreter = "venv/bin/python3",
    python_version = "PY3",
    stub_shebang = "#!{path}",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@rules_python//python:toolchain_type",
)
"""

_PYVENV = """\
home = {home}
include-system-site-packages = false
"""

def _host_python_repository_impl(ctx):
    asked = ctx.os.environ.get("LEMON_PYTHON") or "python3"
    found = ctx.which(asked) if "/" not in asked else ctx.path(asked)
    if found == None or not found.exists:
        fail("%s not found: install Python 3.11 or newer, or set LEMON_PYTHON" % asked)

    probe = ctx.execute([found, "-c", _PROBE])
    if probe.return_code != 0:
        fail("%s does not run: %s" % (found, probe.stderr.strip()))
    path, version = probe.stdout.split("\n")[:2]
    if not path:
        fail("%s is Python %s; Lemon needs 3.11 or newer. Set LEMON_PYTHON to one." % (
            found,
            version,
        ))
    if path.startswith("/tmp/"):
        fail("%s lies below /tmp, which sandboxed actions do not see. Set LEMON_PYTHON." % path)

    # An upgrade in place (another micro version) must reach what was built with the old one.
    ctx.watch(path)
    ctx.file("interpreter_path.txt", path + "\n")
    ctx.symlink(path, "venv/bin/python3")
    ctx.file("venv/pyvenv.cfg", _PYVENV.format(home = path.rpartition("/")[0]))
    ctx.file("BUILD.bazel", _BUILD.format(path = path))

host_python_repository = repository_rule(
    implementation = _host_python_repository_impl,
    doc = "Defines `:toolchain` for the host's Python, and `interpreter_path.txt` for other rules.",
    # PATH, because it decides which python3 is found. What depends on this repository is only
    # fetched anew when the answer changes.
    environ = [
        "LEMON_PYTHON",
        "PATH",
    ],
)
