"""`release_archive`: a program with all that it needs, as one archive that needs no Bazel."""

load("@release_facts//:facts.bzl", "PLATFORM", "PYTHON", "VERSION")
load("@rules_python//python:defs.bzl", "PyInfo")

CHANNELS = ["nightly", "preview", "stable"]

ReleaseInfo = provider(
    doc = "One archive of a release.",
    fields = {
        "archive": "File",
        "facts": "File: JSON with what a manifest says of the archive",
    },
)

_ChannelInfo = provider(
    doc = "The channel of this build.",
    fields = {"name": "string"},
)

def _release_channel_impl(ctx):
    name = ctx.build_setting_value
    if name not in CHANNELS:
        fail("there is no channel %s: %s" % (name, ", ".join(CHANNELS)))
    return _ChannelInfo(name = name)

release_channel = rule(
    implementation = _release_channel_impl,
    doc = "A flag: `--//tools/release:channel=preview`.",
    build_setting = config.string(flag = True),
)

def _both_paths(file):
    return "%s=%s" % (file.path, file.short_path)

def _run(ctx, program, options, files, inputs, outputs):
    arguments = ctx.actions.args()
    arguments.add_all(options)
    arguments.add_all(files, map_each = _both_paths, expand_directories = False)
    arguments.use_param_file("@%s", use_always = True)
    arguments.set_param_file_format("multiline")
    ctx.actions.run(
        executable = program,
        arguments = [arguments],
        inputs = files + inputs,
        outputs = outputs,
        mnemonic = "Release",
        progress_message = "Packing %{label}",
        # Bytecode depends on the order of sets and dictionaries while it is made.
        env = {"PYTHONHASHSEED": "0"},
        # A hundred megabytes for each change of a source would soon fill the cache.
        execution_requirements = {"no-cache": "1"},
    )

def _release_archive_impl(ctx):
    channel = ctx.attr._channel[_ChannelInfo].name
    name = "lemon-%s-%s-%s-%s" % (VERSION, channel, PLATFORM, ctx.attr.profile)
    packages = ctx.actions.declare_file(ctx.label.name + ".packages.tar.gz")
    inventory = ctx.actions.declare_file(ctx.label.name + ".packages.json")
    archive = ctx.actions.declare_file(name + ".tar.gz")
    facts = ctx.actions.declare_file(ctx.label.name + ".facts.json")

    program = ctx.attr.program
    found = depset(transitive = [
        program[PyInfo].transitive_sources,
        program[DefaultInfo].default_runfiles.files,
    ]).to_list()

    # Packages from PyPI are folders of other repositories; the rest is the program itself.
    foreign = [file for file in found if file.short_path.startswith("../")]
    own = [file for file in found if not file.short_path.startswith("../")]
    own_imports = [
        path.partition("/")[2]
        for path in program[PyInfo].imports.to_list()
        if path.partition("/")[0] == ctx.workspace_name
    ]

    _run(
        ctx,
        ctx.executable._pack_packages,
        ["--out", packages.path, "--inventory", inventory.path] +
        ["--licence=" + file.path for file in ctx.files._licences],
        foreign,
        ctx.files._licences,
        [packages, inventory],
    )
    _run(
        ctx,
        ctx.executable._pack_program,
        [
            "--out=" + archive.path,
            "--facts=" + facts.path,
            "--packages=" + packages.path,
            "--inventory=" + inventory.path,
            "--script=" + ctx.file.script.path,
            "--version=" + VERSION,
            "--channel=" + channel,
            "--platform=" + PLATFORM,
            "--profile=" + ctx.attr.profile,
            "--python=" + PYTHON,
            "--status=" + ctx.info_file.path,
        ] + ["--import-root=" + path for path in own_imports],
        own,
        [packages, inventory, ctx.file.script, ctx.info_file],
        [archive, facts],
    )
    return [
        DefaultInfo(files = depset([archive])),
        ReleaseInfo(archive = archive, facts = facts),
        OutputGroupInfo(facts = depset([facts])),
    ]

release_archive = rule(
    implementation = _release_archive_impl,
    doc = "Packs `program` with all packages that it depends on; see README.md.",
    attrs = {
        "profile": attr.string(
            mandatory = True,
            doc = "The profile that the archive runs.",
        ),
        "program": attr.label(
            mandatory = True,
            providers = [PyInfo],
            doc = "The library that the start script imports, with everything below it.",
        ),
        "script": attr.label(
            mandatory = True,
            allow_single_file = True,
            doc = "The start script; `@PYTHON@` and `@VERSION@` in it are filled in.",
        ),
        "_channel": attr.label(default = "//tools/release:channel"),
        "_licences": attr.label(default = "//tools/release:licences"),
        "_pack_packages": attr.label(
            default = "//tools/release:pack_packages",
            executable = True,
            cfg = "exec",
        ),
        "_pack_program": attr.label(
            default = "//tools/release:pack_program",
            executable = True,
            cfg = "exec",
        ),
    },
)
