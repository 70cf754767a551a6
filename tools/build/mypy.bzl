"""Strict mypy in the build: each library is analysed once, on top of its dependencies' caches.

An aspect runs mypy over the sources of every py_library of this repository and hands its cache on
(tools/build/mypy_runner.py tells how). The standard library and the big typed packages are analysed
once for all, by `mypy_packages`. `mypy_test` fails when a library it names has errors; a change in
one app runs mypy again for that app and for those that depend on it, from their caches.
"""

load("@rules_python//python:defs.bzl", "PyInfo")
load("//tools/build:report.bzl", "report_script")

_MypyInfo = provider(
    doc = "What mypy needs to know of a library.",
    fields = {
        "caches": "depset of cache files, of the library and all below it",
        "report": "File with mypy's errors in the library's own sources, or None",
        "sources": "depset of .py, .pyi and py.typed files, of the library and all below it",
    },
)

MypyPackagesInfo = provider(
    doc = "Packages that mypy itself runs from, or that are analysed once for all.",
    fields = {
        "cache": "File: the cache of the analysed modules",
        "files": "depset of all files of the packages",
        "folders": "list of import folders, relative to the execution root",
    },
)

_CONFIG = "//:pyproject.toml"

def _is_typed(file):
    return file.extension in ["py", "pyi"] or file.basename == "py.typed"

def _folders(ctx, imports):
    """Splits import paths of PyInfo into those of this repository and those of packages."""
    own = ["."]
    packages = []
    for path in imports:
        repository, _, folder = path.partition("/")
        if repository == ctx.workspace_name:
            if folder and folder != ".":
                own.append(folder)
            own.append((ctx.bin_dir.path + "/" + folder).rstrip("/"))
        else:
            packages.append("external/" + path)
    return own, packages

def _run(ctx, runner, name, sources, search_path, packages, inputs, caches):
    cache = ctx.actions.declare_file(name + ".mypy.db")
    report = ctx.actions.declare_file(name + ".mypy.txt")
    params = ctx.actions.declare_file(name + ".mypy.json")
    config = ctx.file._mypy_config
    ctx.actions.write(params, json.encode({
        "cache": cache.path,
        "caches": [file.path for file in caches],
        "config": config.path,
        "packages": packages,
        "report": report.path,
        "search_path": search_path,
        "sources": sources,
    }))
    ctx.actions.run(
        executable = runner,
        arguments = [params.path],
        inputs = depset([params, config] + caches, transitive = inputs),
        outputs = [cache, report],
        mnemonic = "Mypy",
        progress_message = "mypy %{label}",
    )
    return cache, report

def _mypy_packages_impl(ctx):
    info = depset(
        transitive = [dep[DefaultInfo].default_runfiles.files for dep in ctx.attr.packages],
    )
    imports = depset(transitive = [dep[PyInfo].imports for dep in ctx.attr.packages]).to_list()
    folders = _folders(ctx, imports)[1]
    probe = ctx.actions.declare_file(ctx.label.name + ".imports.py")
    ctx.actions.write(probe, "".join(["import %s\n" % module for module in ctx.attr.modules]))
    cache, report = _run(
        ctx,
        runner = ctx.executable._mypy_runner,
        name = ctx.label.name,
        sources = [probe.path],
        search_path = [],
        packages = folders,
        inputs = [info, depset([probe])],
        caches = [],
    )
    return [
        DefaultInfo(files = depset([report])),
        MypyPackagesInfo(cache = cache, files = info, folders = folders),
    ]

_RUN_ATTRS = {
    "_mypy_config": attr.label(
        allow_single_file = True,
        default = _CONFIG,
    ),
    "_mypy_runner": attr.label(
        cfg = "exec",
        default = "//tools/build:mypy_runner",
        executable = True,
    ),
}

mypy_packages = rule(
    implementation = _mypy_packages_impl,
    doc = "Analyses the standard library and some packages once, for every library.",
    attrs = _RUN_ATTRS | {
        "modules": attr.string_list(
            doc = "Modules to analyse; what they import comes along.",
        ),
        "packages": attr.label_list(
            doc = "The packages, with mypy and its plugins among them.",
            providers = [PyInfo],
        ),
    },
)

def _mypy_aspect_impl(target, ctx):
    if PyInfo not in target:
        return []
    below = [dep[_MypyInfo] for dep in getattr(ctx.rule.attr, "deps", []) if _MypyInfo in dep]
    own = [
        file
        for file in getattr(ctx.rule.files, "srcs", []) + getattr(ctx.rule.files, "data", [])
        # A package from PyPI is one folder, of which mypy picks what it needs.
        if _is_typed(file) or (ctx.label.workspace_name and file.basename == "site")
    ]
    sources = depset(own, transitive = [info.sources for info in below])
    caches = depset(transitive = [info.caches for info in below])
    written = [file for file in own if file.extension == "py" and file.is_source]
    if ctx.label.workspace_name or not written or "no-mypy" in ctx.rule.attr.tags:
        return [_MypyInfo(caches = caches, report = None, sources = sources)]

    base = ctx.attr._mypy_packages[MypyPackagesInfo]
    search_path, packages = _folders(ctx, target[PyInfo].imports.to_list())
    cache, report = _run(
        ctx,
        runner = ctx.executable._mypy_runner,
        name = ctx.label.name,
        sources = [file.path for file in written],
        search_path = search_path,
        packages = base.folders + [folder for folder in packages if folder not in base.folders],
        inputs = [sources, base.files],
        caches = [base.cache] + caches.to_list(),
    )
    return [_MypyInfo(
        caches = depset([cache], transitive = [caches]),
        report = report,
        sources = sources,
    )]

_mypy_aspect = aspect(
    implementation = _mypy_aspect_impl,
    attr_aspects = ["deps"],
    attrs = _RUN_ATTRS | {
        "_mypy_packages": attr.label(
            default = "//tools/build:mypy_packages",
            providers = [MypyPackagesInfo],
        ),
    },
)

def _mypy_test_impl(ctx):
    reports = [dep[_MypyInfo].report for dep in ctx.attr.deps if dep[_MypyInfo].report]
    return [report_script(ctx, reports)]

mypy_test = rule(
    implementation = _mypy_test_impl,
    doc = "Fails when mypy finds an error in the sources of a library in `deps`.",
    test = True,
    attrs = {
        "deps": attr.label_list(
            aspects = [_mypy_aspect],
            mandatory = True,
        ),
    },
)
