"""The locked packages from PyPI as `@pypi//<name>`, installed by one pip call.

One call for all is several times faster than one per package, and needs no code of rules_python,
whose bundled pip does not run on Python 3.12 and newer.
"""

_PIP_OPTIONS = [
    "--no-deps",
    "--require-hashes",
    # Only wheels: no package's build code runs on this machine.
    "--only-binary",
    ":all:",
    # Bytecode is compiled afterwards, in a form that does not depend on file times.
    "--no-compile",
    "--no-input",
    "--no-warn-script-location",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
]

def _pypi_repository_impl(ctx):
    python = ctx.read(ctx.attr.interpreter).strip()
    environment = _pip_environment(ctx, python)

    arguments = [python, "-m", "pip", "install", "--target", "site"] + _PIP_OPTIONS
    for lock in ctx.attr.locks:
        # Not only a path: the repository must follow when the lock changes.
        ctx.watch(lock)
        arguments += ["-r", ctx.path(lock)]
    ctx.report_progress("pip installs the locked packages")
    installed = ctx.execute(arguments, environment = environment, timeout = 3600)
    if installed.return_code != 0:
        fail("pip could not install the locked packages:\n" + installed.stderr.strip())

    ctx.report_progress("splitting the installed packages")
    split = ctx.execute(
        [python, ctx.path(ctx.attr._split), "site", "."],
        # With a fixed seed the bytecode, and with it each archive, is the same in every clone.
        environment = environment | {"PYTHONHASHSEED": "0"},
        timeout = 600,
    )
    if split.return_code != 0:
        fail("the installed packages could not be split:\n" + split.stderr.strip())

    _add_libraries(ctx, python)

def _add_libraries(ctx, python):
    """Completes wheels that expect of the system what this one lacks; tools/bazelw says where."""
    libraries = ctx.os.environ.get("LEMON_LIBRARIES")
    patchelf = ctx.os.environ.get("LEMON_PATCHELF")
    if not libraries or not patchelf:
        return
    ctx.report_progress("adding shared libraries")
    added = ctx.execute(
        [python, ctx.path(ctx.attr._add_libraries), ".", libraries, patchelf],
        timeout = 600,
    )
    if added.return_code != 0:
        fail("shared libraries could not be added:\n" + added.stderr.strip())

def _pip_environment(ctx, python):
    """Returns what must be in the environment for `python -m pip` to work."""
    if ctx.execute([python, "-c", "import pip"]).return_code == 0:
        return {}
    folder = ctx.os.environ.get("LEMON_PIP_PATH")
    if not folder:
        fail("%s has no pip: install it (on Debian: python3-pip), or set LEMON_PYTHON" % python)
    return {"PYTHONPATH": folder}

pypi_repository = repository_rule(
    implementation = _pypi_repository_impl,
    doc = "Installs the locked packages once and makes one `py_library` of each.",
    attrs = {
        "interpreter": attr.label(
            mandatory = True,
            doc = "A file with the absolute path of the interpreter.",
        ),
        "locks": attr.label_list(
            mandatory = True,
            doc = "pip requirement files with hashes.",
        ),
        "_add_libraries": attr.label(default = "//third_party/python:add_libraries.py"),
        "_split": attr.label(default = "//third_party/python:split_site.py"),
    },
    environ = [
        "LEMON_LIBRARIES",
        "LEMON_PATCHELF",
        "LEMON_PIP_PATH",
    ],
)
