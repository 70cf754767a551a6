"""A C++ toolchain without a compiler.

Bazel's Python rules ask for a C++ toolchain and then do not use it, and a bare machine has no
compiler that Bazel could detect. Nothing in this workspace is C or C++.
"""

def _no_cc_config_impl(ctx):
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        abi_libc_version = "none",
        abi_version = "none",
        compiler = "none",
        host_system_name = "none",
        target_cpu = "none",
        target_libc = "none",
        target_system_name = "none",
        toolchain_identifier = "none",
    )

no_cc_config = rule(
    implementation = _no_cc_config_impl,
    provides = [CcToolchainConfigInfo],
)
