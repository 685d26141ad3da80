"""wheel_with_kernels: the wheel with another project's kernels in it."""

load(":operators.bzl", _kernels = "kernels")
load(":transitions.bzl", "link_folder")

_MORE_KERNELS = "//kernels:more"

def _transition_impl(_settings, attr):
    return {_MORE_KERNELS: attr.kernels}

_transition = transition(
    implementation = _transition_impl,
    inputs = [],
    outputs = [_MORE_KERNELS],
)

def _wheel_with_kernels_impl(ctx):
    return link_folder(ctx, ctx.attr.wheel)

_wheel_with_kernels = rule(
    implementation = _wheel_with_kernels_impl,
    attrs = {
        "kernels": attr.label(providers = [CcInfo]),
        "wheel": attr.label(cfg = _transition),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)

def wheel_with_kernels(name, kernels, wheel = Label("//:wheel"), **kwargs):
    """Makes a folder with a wheel that has these kernels besides the ones of //kernels.

    Only the kernels that are named here are compiled for it; everything else is the plain wheel's.

    Args:
      name: the target, and the folder: `bazel-bin/…/NAME/torch_xla-….whl`.
      kernels: labels of kernels (xla_kernel), or of other libraries to link.
      wheel: what is made from them: the wheel, or a folder in which it is installed.
      **kwargs: visibility and the like.
    """
    # The wheel's own kernels depend on these through a flag, so they cannot be testonly.
    others = {key: value for key, value in kwargs.items() if key != "testonly"}
    _kernels(name = name + "_kernels", plain = kernels, **others)
    _wheel_with_kernels(name = name, kernels = name + "_kernels", wheel = wheel, **kwargs)
