"""pytest under Bazel: one small target per test file, so that one change reruns little."""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

_RUNNER = "//tools/build:pytest_runner.py"

_PYTEST = [
    "//:pytest_config",
    "@pypi//anyio",
    "@pypi//pytest",
    "@pypi//pytest_bazel",
]

def pytest_test(name, src, deps = [], args = [], size = "small", **kwargs):
    """Defines one py_test that runs pytest on one file.

    Args:
      name: name of the target.
      src: the test file.
      deps: what the test imports; pytest and the anyio plugin are there already.
      args: further pytest options.
      size: Bazel's test size, which sets the timeout.
      **kwargs: other py_test attributes (data, env, tags, ...).
    """
    py_test(
        name = name,
        size = size,
        srcs = [src, _RUNNER],
        args = ["$(rootpath %s)" % src] + args,
        main = _RUNNER,
        # A dep may be named twice: tests of pytest's own plugins depend on them too.
        deps = deps + [dep for dep in _PYTEST if dep not in deps],
        **kwargs
    )

def pytest_tests(name, srcs, deps = [], special = {}, **kwargs):
    """Defines a pytest target per test file and a library of the files they share.

    The target of `tests/test_slots.py` is `tests/test_slots`. Files not called `test_*.py`
    (`__init__.py`, `conftest.py`, fakes) become the library `name`, which all of them see.
    `<name>.sources` is a library of all of them, for mypy.

    Args:
      name: name of the library with the shared files.
      srcs: all Python files of the tests.
      deps: what the tests import.
      special: file name -> dict of py_test attributes for that file alone, for example
        `{"tests/test_pg.py": {"size": "medium", "tags": ["no-sandbox"]}}`.
      **kwargs: py_test attributes for all of them.
    """
    tests = [src for src in srcs if src.rpartition("/")[2].startswith("test_")]
    for src in special:
        if src not in tests:
            fail("%s: `special` names %s, which is no test file here" % (name, src))
    py_library(
        name = name,
        testonly = True,
        srcs = [src for src in srcs if src not in tests],
        deps = deps,
    )
    py_library(
        name = name + ".sources",
        testonly = True,
        srcs = srcs,
        deps = deps + [dep for dep in _PYTEST if dep not in deps],
    )
    for src in tests:
        attributes = dict(kwargs)
        attributes.update(special.get(src, {}))
        attributes["data"] = kwargs.get("data", []) + special.get(src, {}).get("data", [])
        pytest_test(
            name = src.removesuffix(".py"),
            src = src,
            deps = [":" + name] + attributes.pop("deps", []),
            **attributes
        )
