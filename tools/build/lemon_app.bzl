"""`lemon_app`: one app of the repository, with its place in the graph."""

load("@rules_python//python:defs.bzl", "py_library")
load("//tools/architecture:edges.bzl", "app_of", "dependents", "edge_errors", "edge_report")
load("//tools/architecture:policy.bzl", "ALLOWED", "FINAL")
load("//tools/build:edges_file.bzl", "edges_file")
load("//tools/build:files.bzl", "workspace_files")
load("//tools/build:mypy.bzl", "mypy_test")
load("//tools/build:pytest.bzl", "pytest_tests")
load("//tools/build:report.bzl", "architecture_test")
load("//tools/build:ruff.bzl", "ruff_test")

# They alone join apps that the graph keeps apart, and nothing depends on them.
_COMPOSITION_ROOTS = ["//tools/bench", "//tools/e2e", "//tools/release"]

_PARTS = ["http", "rpc", "testing"]
_PART_KEYS = ["protos", "third_party"]

def lemon_app(
        *,
        name,
        deps = [],
        test_deps = [],
        third_party = [],
        test_third_party = [],
        protos = [],
        parts = {},
        special_tests = {}):
    """Defines an app: its library and parts, tests, checks, visibility and edges file.

    The library's `deps` are the edges of the graph. Together with `test_deps` they must equal the
    app's row in tools/architecture/policy.bzl, or loading fails.

    Targets: `<name>`, `rpc` and `testing` (the parts it has), `tests/<file>` for each test file,
    `mypy`, `ruff`, `imports` (imports against `deps`, unused deps), `<name>.edges.json`, `files`.

    Args:
      name: the app, which is the name of its folder and of its import package.
      deps: labels of apps, and of parts of apps, that the sources import.
      test_deps: labels that only `tests/` and the part `testing` import; they are edges too.
      third_party: names on PyPI of what the sources import, outside the parts.
      test_third_party: names on PyPI that only tests import; pytest and hypothesis are there.
      protos: labels of py_grpc_library targets that the sources import, outside the parts.
      parts: "http", "rpc" or "testing" to a dict with `third_party` and `protos` of that part. A part is
        the folder of its name, a library of its own on top of the app; `testing` is for tests only.
      special_tests: test file to a dict of py_test attributes for it (size, tags, data, deps).
        A test target holds its own file and the files not called `test_*.py`: what two test files
        share belongs in one of those.
    """
    _check_arguments(name, deps, test_deps, parts)
    errors = edge_errors(name, deps, test_deps, ALLOWED, FINAL)
    if errors:
        fail(edge_report(name, errors))

    visibility = [
        "//apps/%s:__pkg__" % app
        for app in dependents(name, ALLOWED)
    ] + ["%s:__subpackages__" % root for root in _COMPOSITION_ROOTS]

    py_library(
        name = name,
        srcs = native.glob(["**/*.py"], exclude = ["%s/**" % folder for folder in _PARTS + ["tests"]]),
        # What lies beside the sources ships with them: catalogues, prompts, profiles.
        data = native.glob(
            ["**"],
            # Hidden folders are caches of tools.
            exclude = ["**/*.py", "**/*.pyc", "**/.*/**", "BUILD.bazel", "README.md"] +
                      ["%s/**" % folder for folder in _PARTS + ["tests"]],
            allow_empty = True,
        ),
        imports = [".."],
        visibility = visibility,
        deps = deps + protos + _pypi(third_party),
    )
    edges_file(
        name = name + ".edges.json",
        app = name,
        app_deps = deps,
        app_test_deps = test_deps,
        visibility = ["//docs:__pkg__", "//tools/architecture:__pkg__"],
    )

    libraries = [":" + name]
    for part in sorted(parts):
        for_tests = part == "testing"
        py_library(
            name = part,
            testonly = for_tests,
            srcs = native.glob([part + "/**/*.py"]),
            data = native.glob([part + "/**"], exclude = ["**/*.py", "**/*.pyc"], allow_empty = True),
            imports = [".."],
            visibility = visibility,
            # In this order `testing` sees `rpc`: contract suites run against both forms of a port.
            deps = libraries + (test_deps if for_tests else []) +
                   parts[part].get("protos", []) +
                   _pypi(parts[part].get("third_party", [])),
        )
        libraries = libraries + [":" + part]

    _tests(name, libraries, test_deps + _pypi(test_third_party), special_tests)
    _checks(name, libraries)

def _tests(name, libraries, deps, special):
    sources = native.glob(["tests/**/*.py"], allow_empty = True)
    pytest_tests(
        name = name + "._tests",
        srcs = sources,
        data = native.glob(
            ["tests/**"],
            exclude = ["**/*.py", "**/*.pyc"],
            allow_empty = True,
        ),
        special = special,
        deps = libraries + deps + _pypi(["hypothesis"]),
    )

def _checks(name, libraries):
    mypy_test(
        name = "mypy",
        size = "small",
        testonly = True,
        deps = libraries + [":%s._tests.sources" % name],
    )
    workspace_files()
    ruff_test(
        name = "ruff",
        srcs = [":files"],
    )
    architecture_test(
        name = "imports",
        size = "small",
        srcs = [":files", "//tools/architecture:policy.bzl"],
        command = ["imports", name],
    )

def _check_arguments(name, deps, test_deps, parts):
    if native.package_name() != "apps/" + name:
        fail("lemon_app %s: its folder is apps/%s, this is %s" % (name, name, native.package_name()))
    for label in deps + test_deps:
        if app_of(label) == None:
            fail("lemon_app %s: deps are labels of apps, written //apps/…; found %s" % (name, label))
    for part in parts:
        if part not in _PARTS:
            fail("lemon_app %s: an app has the parts %s, not %s" % (name, " and ".join(_PARTS), part))
        for key in parts[part]:
            if key not in _PART_KEYS:
                fail("lemon_app %s: a part has %s, not %s" % (name, " and ".join(_PART_KEYS), key))
    for part in _PARTS:
        if part not in parts and native.glob([part + "/**/*.py"], allow_empty = True):
            fail("lemon_app %s: there is a folder %s/; name it in `parts`" % (name, part))

def _pypi(names):
    return ["@pypi//" + name.lower().replace("-", "_").replace(".", "_") for name in names]
