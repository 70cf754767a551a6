"""ruff as a test: lint and format check, with the workspace's configuration."""

load("@rules_python//python:defs.bzl", "py_test")

def ruff_test(name, srcs, **kwargs):
    """Defines a test that fails on a lint finding or a file that `ruff format` would change.

    Args:
      name: name of the test.
      srcs: files to look at; those that are not Python are left out.
      **kwargs: other py_test attributes.
    """
    py_test(
        name = name,
        size = "small",
        srcs = ["//tools/build:ruff_runner.py"],
        args = ["$(rootpaths %s)" % src for src in srcs],
        data = srcs + ["//:pyproject.toml"],
        main = "//tools/build:ruff_runner.py",
        deps = ["@pypi//ruff"],
        **kwargs
    )
