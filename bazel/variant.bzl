"""variant: a target's output folder, built with other settings, for tests that compare."""

load(":transitions.bzl", "link_folder")

_REBUILD = "//bazel:rebuild"
_ARCHS = "//bazel/cuda:archs"

def _rebuild_setting_impl(_ctx):
    return []

rebuild_setting = rule(
    implementation = _rebuild_setting_impl,
    doc = "A setting that nothing reads. Another value makes Bazel build everything elsewhere.",
    build_setting = config.bool(),
)

def _transition_impl(settings, attr):
    return {
        _ARCHS: attr.archs or settings[_ARCHS],
        _REBUILD: attr.rebuild,
    }

_transition = transition(
    implementation = _transition_impl,
    inputs = [_ARCHS],
    outputs = [
        _ARCHS,
        _REBUILD,
    ],
)

def _variant_impl(ctx):
    return link_folder(ctx, ctx.attr.target)

variant = rule(
    implementation = _variant_impl,
    doc = "The folder that `target` makes with these settings.",
    attrs = {
        "archs": attr.string_list(
            doc = "GPU architectures, as `--//bazel/cuda:archs=` takes them.",
        ),
        "rebuild": attr.bool(
            doc = "Whether it is built a second time, by actions of its own in another folder.",
        ),
        "target": attr.label(cfg = _transition, mandatory = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)
