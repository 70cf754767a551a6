"""Stands in for the extension that Bazel's own MODULE.bazel uses, so that `bazel mod` works."""

def _no_buildozer_impl(ctx):
    ctx.file("BUILD.bazel", "")

_no_buildozer = repository_rule(implementation = _no_buildozer_impl)

def _buildozer_binary_impl(_ctx):
    _no_buildozer(name = "buildozer_binary")

buildozer_binary = module_extension(implementation = _buildozer_binary_impl)
