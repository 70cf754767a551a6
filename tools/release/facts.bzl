"""What an archive is named after: the version, and the machine that it is built on and for."""

_SYSTEMS = {
    "linux": "linux",
    "mac os x": "darwin",
}

_ARCHITECTURES = {
    "aarch64": "arm64",
    "amd64": "x86_64",
    "arm64": "arm64",
    "x86_64": "x86_64",
}

_FACTS = """\
VERSION = "{version}"
PLATFORM = "{system}-{architecture}"
PYTHON = "{python}"
"""

def _release_facts_repository_impl(ctx):
    python = ctx.read(ctx.attr.interpreter).strip()
    probe = ctx.execute([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    if probe.return_code != 0:
        fail("%s does not run: %s" % (python, probe.stderr.strip()))

    # One place for the version: the module that the programs print it from.
    ctx.watch(ctx.attr.version)
    parts = ctx.read(ctx.attr.version).split("__version__ = \"")
    if len(parts) != 2:
        fail("%s has no line `__version__ = \"…\"`" % ctx.attr.version)

    ctx.file("facts.bzl", _FACTS.format(
        architecture = _ARCHITECTURES.get(ctx.os.arch, ctx.os.arch),
        python = probe.stdout.strip(),
        system = _SYSTEMS.get(ctx.os.name, ctx.os.name),
        version = parts[1].partition("\"")[0],
    ))
    ctx.file("BUILD.bazel", "")

release_facts_repository = repository_rule(
    implementation = _release_facts_repository_impl,
    doc = "Defines `@release_facts//:facts.bzl` with VERSION, PLATFORM and PYTHON.",
    attrs = {
        "interpreter": attr.label(
            mandatory = True,
            doc = "A file with the absolute path of the interpreter.",
        ),
        "version": attr.label(
            mandatory = True,
            doc = "The module with `__version__`.",
        ),
    },
)
