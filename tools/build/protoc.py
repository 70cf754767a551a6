"""protoc with the gRPC plugin and typed stubs, as one program for `grpc.bzl`.

Arguments are protoc's own; the well-known types and the stub plugin are added here, because only
the installed packages know where they lie.
"""

import importlib.util
import sys
from pathlib import Path

from grpc_tools import protoc


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    return Path(spec.origin).parent


def main(arguments: list[str]) -> int:
    """Run protoc and return its exit code."""
    well_known = _package_folder("grpc_tools") / "_proto"
    # A wheel's scripts lie beside its packages; protoc starts this one as a process of its own,
    # which inherits the path this program was given.
    stub_plugin = _package_folder("mypy_protobuf").parent / "bin" / "protoc-gen-mypy_grpc"
    code: int = protoc.main(
        [
            "protoc",
            f"--plugin=protoc-gen-mypy_grpc={stub_plugin}",
            *arguments,
            # Last, so that the workspace's own folder wins.
            f"--proto_path={well_known}",
        ]
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
