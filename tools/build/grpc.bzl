"""Python code from `protos/`, generated in the build; nothing generated is checked in.

`protos/` is the root of all names: `protos/lemon/execution/v1/execution.proto` is imported by other
protos as `lemon/execution/v1/execution.proto` and by Python as `lemon.execution.v1.execution_pb2`.
"""

load("@rules_python//python:defs.bzl", "py_library")

_ROOT = "protos"

_ProtoFilesInfo = provider(
    doc = "The .proto files of a library and of all it imports.",
    fields = {"files": "depset of File"},
)

def _generated_impl(ctx):
    below_root = ctx.label.package.removeprefix(_ROOT).removeprefix("/")
    sources = depset(
        ctx.files.protos,
        transitive = [dep[_ProtoFilesInfo].files for dep in ctx.attr.deps],
    )
    modules = []
    stubs = []
    names = []
    for proto in ctx.files.protos:
        stem = proto.short_path.removeprefix(_ROOT + "/").removesuffix(".proto")
        names.append(stem + ".proto")
        local = stem.removeprefix(below_root).removeprefix("/")
        for suffix in ["_pb2", "_pb2_grpc"]:
            modules.append(ctx.actions.declare_file(local + suffix + ".py"))
            stubs.append(ctx.actions.declare_file(local + suffix + ".pyi"))
    descriptors = ctx.actions.declare_file(ctx.attr.library + ".binpb")

    root = "/".join([part for part in [ctx.bin_dir.path, ctx.label.workspace_root, _ROOT] if part])
    arguments = ctx.actions.args()
    arguments.add("--proto_path=" + _ROOT)
    for plugin in ["python", "pyi", "grpc_python", "mypy_grpc"]:
        arguments.add("--%s_out=%s" % (plugin, root))
    arguments.add("--mypy_grpc_opt=quiet")
    arguments.add(descriptors, format = "--descriptor_set_out=%s")
    arguments.add("--include_imports")
    arguments.add_all(names)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        arguments = [arguments],
        inputs = sources,
        outputs = modules + stubs + [descriptors],
        mnemonic = "PyGrpc",
        progress_message = "Generating Python from %{label}",
    )
    return [
        DefaultInfo(files = depset(modules)),
        OutputGroupInfo(stubs = depset(stubs), descriptors = depset([descriptors])),
        _ProtoFilesInfo(files = sources),
    ]

_generated = rule(
    implementation = _generated_impl,
    attrs = {
        "deps": attr.label_list(providers = [_ProtoFilesInfo]),
        "library": attr.string(mandatory = True),
        "protos": attr.label_list(
            allow_files = [".proto"],
            mandatory = True,
        ),
        "_protoc": attr.label(
            default = "//tools/build:protoc",
            cfg = "exec",
            executable = True,
        ),
    },
)

def py_grpc_library(name, protos, deps = [], **kwargs):
    """Defines a py_library with the messages, services and typed stubs of some protos.

    Beside it, `<name>.descriptors` is the compiled FileDescriptorSet with all imports, for tools
    that compare contracts.

    Args:
      name: name of the py_library.
      protos: .proto files of this Bazel package, which lies in `protos/`.
      deps: the py_grpc_library targets whose protos these import; literally, as in a BUILD file.
      **kwargs: attributes of every target (visibility, tags).
    """
    package = native.package_name()
    if package != _ROOT and not package.startswith(_ROOT + "/"):
        fail("py_grpc_library %s: protos live below %s/, this package is %s" % (
            name,
            _ROOT,
            package,
        ))
    generated = name + "._generated"
    _generated(
        name = generated,
        library = name,
        protos = protos,
        deps = [str(native.package_relative_label(dep)) + "._generated" for dep in deps],
        **kwargs
    )
    for group in ["stubs", "descriptors"]:
        native.filegroup(
            name = name + "." + group,
            srcs = [generated],
            output_group = group,
            **kwargs
        )
    depth = len(package.split("/")) - 1
    py_library(
        name = name,
        srcs = [generated],
        data = [name + ".stubs"],
        imports = ["/".join([".."] * depth) or "."],
        deps = deps + [
            "@pypi//grpcio",
            "@pypi//protobuf",
        ],
        **kwargs
    )
