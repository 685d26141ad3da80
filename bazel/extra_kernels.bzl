"""with_extra_kernels: a target built as `--//kernels:extra=…` would build it, for tests."""

_FLAG = "//kernels:extra"

def _transition_impl(_settings, attr):
    return {_FLAG: attr.kernels}

_extra_kernels_transition = transition(
    implementation = _transition_impl,
    inputs = [],
    outputs = [_FLAG],
)

def _with_extra_kernels_impl(ctx):
    folder = ctx.attr.target[0][DefaultInfo].files.to_list()[0]
    output = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.symlink(output = output, target_file = folder)
    return [DefaultInfo(files = depset([output]))]

with_extra_kernels = rule(
    implementation = _with_extra_kernels_impl,
    doc = "The folder that `target` makes with one more library of kernels in the wheel.",
    attrs = {
        "kernels": attr.string(mandatory = True, doc = "The label of the library."),
        "target": attr.label(cfg = _extra_kernels_transition, mandatory = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)
