"""`quick_program`: a Python program that starts about as quickly as Python itself.

The launcher of a py_binary is a Python program of its own, which looks for its files and then
starts Python a second time. Here one start does both.
"""

load("@rules_python//python:defs.bzl", "PyInfo")

_TOOLCHAIN = "@rules_python//python:toolchain_type"

def _quick_program_impl(ctx):
    library = ctx.attr.library
    runtime = ctx.toolchains[_TOOLCHAIN].py3_runtime
    module, _, function = ctx.attr.entry.partition(":")
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.expand_template(
        template = ctx.file._template,
        output = script,
        is_executable = True,
        substitutions = {
            "@FUNCTION@": function,
            "@IMPORTS@": repr([ctx.workspace_name] + library[PyInfo].imports.to_list()),
            "@MODULE@": module,
            # -I: nothing of the working directory and of PYTHON... variables; -S: no packages of
            # this machine. One argument, because the kernel gives one to a shebang's program.
            "@SHEBANG@": runtime.stub_shebang + " -IS",
        },
    )
    return [
        DefaultInfo(
            executable = script,
            runfiles = ctx.runfiles(transitive_files = depset(transitive = [
                library[PyInfo].transitive_sources,
                library[DefaultInfo].default_runfiles.files,
            ])),
        ),
    ]

quick_program = rule(
    implementation = _quick_program_impl,
    doc = "Runs a function of a library, with everything that the library depends on.",
    executable = True,
    attrs = {
        "entry": attr.string(
            mandatory = True,
            doc = "`package.module:function`; it is called without arguments.",
        ),
        "library": attr.label(
            mandatory = True,
            providers = [PyInfo],
            doc = "The library that has it.",
        ),
        "_template": attr.label(
            default = "//tools/release:program.py.tpl",
            allow_single_file = True,
        ),
    },
    toolchains = [_TOOLCHAIN],
)
