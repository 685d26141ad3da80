"""rebuilt: the folder that a target makes, built a second time from the same sources, for tests that compare."""

_SETTING = "//bazel:rebuild"

def _rebuild_setting_impl(_ctx):
    return []

rebuild_setting = rule(
    implementation = _rebuild_setting_impl,
    doc = "A setting that nothing reads. Another value makes Bazel build everything elsewhere.",
    build_setting = config.bool(),
)

def _rebuild_transition_impl(_settings, _attr):
    return {_SETTING: True}

_rebuild_transition = transition(
    implementation = _rebuild_transition_impl,
    inputs = [],
    outputs = [_SETTING],
)

def _rebuilt_impl(ctx):
    # A name of its own: in a test's runfiles, the original has the name of the target.
    folder = ctx.attr.target[0][DefaultInfo].files.to_list()[0]
    output = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.symlink(output = output, target_file = folder)
    return [DefaultInfo(files = depset([output]))]

rebuilt = rule(
    implementation = _rebuilt_impl,
    doc = "The folder that `target` makes, made by actions of their own in another output folder.",
    attrs = {
        "target": attr.label(cfg = _rebuild_transition, mandatory = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)
