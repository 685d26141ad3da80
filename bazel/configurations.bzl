"""Wheels of several configurations in one build: with more kernels, or built a second time.

Bazel compiles all dependencies of such a wheel again, in a separate folder. Dependencies that the
difference does not affect are therefore reset to the configuration of the plain wheel, //:wheel, so
that all wheels share them.
"""

load(":operators.bzl", "OperatorInfo", "collect_modules", "collect_samples")

_ADDED_KERNELS = "//kernels:added_by_wheel_with_kernels"
_REBUILD = "//bazel:rebuild"
_ARCHS = "//bazel/cuda:archs"
_NO_KERNELS = Label("//kernels:none")
_ALLOWLIST = "@bazel_tools//tools/allowlists/function_transition_allowlist"

# A transition to the configuration of the plain wheel.

def _shared_impl(_settings, _attr):
    return {_ADDED_KERNELS: _NO_KERNELS}

_shared = transition(
    implementation = _shared_impl,
    inputs = [],
    outputs = [_ADDED_KERNELS],
)

def _shared_not_rebuilt_impl(_settings, _attr):
    return {_ADDED_KERNELS: _NO_KERNELS, _REBUILD: False}

shared_not_rebuilt = transition(
    implementation = _shared_not_rebuilt_impl,
    inputs = [],
    outputs = [
        _ADDED_KERNELS,
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
        "deps": attr.label_list(cfg = shared_not_rebuilt, providers = [CcInfo]),
        "_allowlist_function_transition": attr.label(default = _ALLOWLIST),
    },
)

def _kernels_impl(ctx):
    targets = ctx.attr.deps + ctx.attr.shared + ctx.attr.shared_not_rebuilt
    return [
        DefaultInfo(),
        cc_common.merge_cc_infos(
            cc_infos = [target[CcInfo] for target in targets if CcInfo in target],
        ),
        OperatorInfo(
            modules = depset(transitive = collect_modules(targets)),
            samples = depset(transitive = collect_samples(targets)),
        ),
    ]

kernels = rule(
    implementation = _kernels_impl,
    doc = "Several kernels, as a library to link, with the modules of their operators.",
    attrs = {
        "deps": attr.label_list(
            providers = [[CcInfo], [OperatorInfo]],
            doc = "Kernels (xla_kernel), other libraries to link, and operators' modules.",
        ),
        "shared": attr.label_list(
            cfg = _shared,
            providers = [[CcInfo], [OperatorInfo]],
            doc = "Libraries that are compiled once for all wheels, also those with more kernels.",
        ),
        "shared_not_rebuilt": attr.label_list(
            cfg = shared_not_rebuilt,
            providers = [[CcInfo], [OperatorInfo]],
            doc = "As `shared`; the test that builds the wheel again does not compile these again, " +
                  "which takes minutes.",
        ),
        "_allowlist_function_transition": attr.label(default = _ALLOWLIST),
    },
)

# A transition from the configuration of the plain wheel to another one.

def _link_folder(ctx, target):
    """Links the output of `target` to a folder with the name of the rule's target.

    In a test's runfiles, the output itself would have the name of its own target.
    """
    output = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.symlink(
        output = output,
        target_file = target[0][DefaultInfo].files.to_list()[0],
    )
    return [DefaultInfo(files = depset([output]))]

def _with_kernels_impl(_settings, attr):
    return {_ADDED_KERNELS: attr.kernels}

_with_kernels = transition(
    implementation = _with_kernels_impl,
    inputs = [],
    outputs = [_ADDED_KERNELS],
)

def _wheel_with_kernels_impl(ctx):
    return _link_folder(ctx, ctx.attr.wheel)

_wheel_with_kernels = rule(
    implementation = _wheel_with_kernels_impl,
    attrs = {
        "kernels": attr.label(providers = [CcInfo]),
        "wheel": attr.label(cfg = _with_kernels),
        "_allowlist_function_transition": attr.label(default = _ALLOWLIST),
    },
)

def wheel_with_kernels(name, kernels, wheel = Label("//:wheel"), **kwargs):
    """Makes a folder with a wheel that has these kernels besides the ones of //kernels.

    Only the kernels that are named here are compiled for it; everything else is the plain wheel's.

    Args:
      name: the target, and the folder: `bazel-bin/…/NAME/torch_xla-….whl`.
      kernels: labels of kernels (xla_kernel), or of other libraries to link.
      wheel: the target to build with them: the wheel, or a folder in which it is installed.
      **kwargs: visibility and the like.
    """
    # The wheel's own kernels depend on these through a flag, so they cannot be testonly.
    others = {key: value for key, value in kwargs.items() if key != "testonly"}
    _kernels(name = name + "_kernels", shared = kernels, **others)
    _wheel_with_kernels(name = name, kernels = name + "_kernels", wheel = wheel, **kwargs)

# `kernels` is a parameter of wheel_with_kernels.
_kernels = kernels

def _rebuild_setting_impl(_ctx):
    return []

rebuild_setting = rule(
    implementation = _rebuild_setting_impl,
    doc = "A setting that nothing reads. Another value makes Bazel build everything elsewhere.",
    build_setting = config.bool(),
)

def _variant_transition_impl(settings, attr):
    return {
        _ARCHS: attr.archs or settings[_ARCHS],
        _REBUILD: attr.rebuild,
    }

_variant_transition = transition(
    implementation = _variant_transition_impl,
    inputs = [_ARCHS],
    outputs = [
        _ARCHS,
        _REBUILD,
    ],
)

def _variant_impl(ctx):
    return _link_folder(ctx, ctx.attr.target)

variant = rule(
    implementation = _variant_impl,
    doc = "The folder that `target` makes with these settings, for tests that compare.",
    attrs = {
        "archs": attr.string_list(
            doc = "GPU architectures, as `--//bazel/cuda:archs=` takes them.",
        ),
        "rebuild": attr.bool(
            doc = "Whether it is built a second time, by actions of its own in another folder.",
        ),
        "target": attr.label(cfg = _variant_transition, mandatory = True),
        "_allowlist_function_transition": attr.label(default = _ALLOWLIST),
    },
)
