"""All files of the repository as data, for the checks that look at the whole of it."""

def workspace_files(exclude = [], exclude_packages = []):
    """Defines `:files`, every file of this package and of the packages below it.

    Each BUILD file has it once. The root's `//:files` is made of them: a package that forgets it
    fails the build of the whole-repository checks by name, and is not silently left out.

    Args:
      exclude: glob patterns of files that are not part of the sources.
      exclude_packages: patterns of packages below this one that are not part of this workspace.
    """
    package = native.package_name()
    below = native.subpackages(
        include = ["**"],
        exclude = exclude_packages,
        allow_empty = True,
    )
    native.filegroup(
        name = "files",
        srcs = native.glob(["**"], exclude = ["**/__pycache__/**"] + exclude) + [
            "//%s/%s:files" % (package, name)
            for name in below
        ],
        visibility = ["//visibility:public"],
    )
