"""`<app>.edges.json`: what the build knows of an app's edges, for the generated table."""

def _edges_file_impl(ctx):
    content = {
        "app": ctx.attr.app,
        "deps": ctx.attr.app_deps,
        "test_deps": ctx.attr.app_test_deps,
    }
    file = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(file, json.encode_indent(content, indent = "  ") + "\n")
    return [DefaultInfo(files = depset([file]))]

edges_file = rule(
    implementation = _edges_file_impl,
    doc = "Writes the labels of an app's deps and test_deps, as its BUILD file gives them.",
    attrs = {
        "app": attr.string(mandatory = True),
        # Strings: as labels they would be dependencies of this target.
        "app_deps": attr.string_list(),
        "app_test_deps": attr.string_list(),
    },
)
