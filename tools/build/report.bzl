"""Tests over report files: an action writes what is wrong, the test tells it."""

def report_script(ctx, reports):
    """Returns DefaultInfo of a test that prints the reports and fails when one is not empty."""
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    lines = ["#!/bin/sh", "status=0"]
    lines += [
        "if [ -s '%s' ]; then cat '%s'; status=1; fi" % (report.short_path, report.short_path)
        for report in reports
    ]
    ctx.actions.write(script, "\n".join(lines + ["exit $status", ""]), is_executable = True)
    return DefaultInfo(executable = script, runfiles = ctx.runfiles(reports))

def _architecture_test_impl(ctx):
    report = ctx.actions.declare_file(ctx.label.name + ".report.txt")
    arguments = ctx.actions.args()
    for word in ctx.attr.command:
        arguments.add(word)
    arguments.add(report)
    arguments.add_all(ctx.files.args_files)
    ctx.actions.run(
        executable = ctx.executable._command,
        arguments = [arguments],
        inputs = ctx.files.srcs + ctx.files.args_files,
        outputs = [report],
        mnemonic = "Architecture",
        progress_message = "Checking %{label}",
    )
    return [report_script(ctx, [report])]

architecture_test = rule(
    implementation = _architecture_test_impl,
    doc = "Runs a command of //tools/architecture:command and fails when it reports something.",
    test = True,
    attrs = {
        "args_files": attr.label_list(
            allow_files = True,
            doc = "Files to name after the report.",
        ),
        "command": attr.string_list(
            doc = "The words before the report.",
            mandatory = True,
        ),
        "srcs": attr.label_list(
            allow_files = True,
            doc = "What the command reads.",
        ),
        "_command": attr.label(
            cfg = "exec",
            default = "//tools/architecture:command",
            executable = True,
        ),
    },
)
