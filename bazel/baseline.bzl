"""Transitions to the configuration of the plain wheel, whose compiled code other wheels share.

A wheel with more kernels (wheel_with_kernels.bzl), or one that a test builds again, has another
configuration than //:wheel, and Bazel would compile all its dependencies for it again, in a
separate folder. Dependencies that the difference does not affect are therefore reset to the plain
configuration.
"""

_MORE_KERNELS = "//kernels:more"
_REBUILD = "//bazel:rebuild"
_NONE = Label("//kernels:none")

def _plain_wheel_impl(_settings, _attr):
    return {_MORE_KERNELS: _NONE}

plain_wheel = transition(
    implementation = _plain_wheel_impl,
    inputs = [],
    outputs = [_MORE_KERNELS],
)

def _built_once_impl(_settings, _attr):
    return {_MORE_KERNELS: _NONE, _REBUILD: False}

built_once = transition(
    implementation = _built_once_impl,
    inputs = [],
    outputs = [
        _MORE_KERNELS,
        _REBUILD,
    ],
)

def _plain_libraries_impl(ctx):
    return [
        DefaultInfo(),
        cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]),
    ]

plain_libraries = rule(
    implementation = _plain_libraries_impl,
    doc = "C++ libraries that every wheel shares, compiled once.",
    attrs = {
        "deps": attr.label_list(cfg = built_once, providers = [CcInfo]),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)
