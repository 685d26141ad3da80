"""Adds the kernels' folders to the wheel: the kernels themselves, and the modules of their
operators."""

load(":baseline.bzl", "built_once", "plain_wheel")

OperatorInfo = provider(
    doc = "Python modules that the wheel has as torch_xla_ext.ops.<name>.",
    fields = {
        "modules": "depset of structs: name (string), file (File)",
        "samples": "depset of Files: what the operators are tested with",
    },
)

def _modules(targets):
    return [target[OperatorInfo].modules for target in targets if OperatorInfo in target]

def _samples(targets):
    return [target[OperatorInfo].samples for target in targets if OperatorInfo in target]

def _operator_module_impl(ctx):
    module = struct(name = ctx.attr.module or ctx.label.name, file = ctx.file.src)
    return [
        DefaultInfo(files = depset([ctx.file.src])),
        OperatorInfo(
            modules = depset([module], transitive = _modules(ctx.attr.deps)),
            samples = depset(ctx.files.samples, transitive = _samples(ctx.attr.deps)),
        ),
    ]

operator_module = rule(
    implementation = _operator_module_impl,
    doc = "A Python file that the wheel has as torch_xla_ext.ops.<module>.",
    attrs = {
        "deps": attr.label_list(
            providers = [OperatorInfo],
            doc = "Modules that it imports.",
        ),
        "module": attr.string(
            doc = "Its name in the wheel, by default this target's. With an underscore in front " +
                  "it is no operator, but what operators share.",
        ),
        "samples": attr.label(
            allow_single_file = ["samples.py"],
            doc = "What the operators in it are tested with, in tests/ops.",
        ),
        "src": attr.label(allow_single_file = [".py"], mandatory = True),
    },
)

def _kernels_impl(ctx):
    targets = ctx.attr.deps + ctx.attr.plain + ctx.attr.once
    return [
        DefaultInfo(),
        cc_common.merge_cc_infos(
            cc_infos = [target[CcInfo] for target in targets if CcInfo in target],
        ),
        OperatorInfo(
            modules = depset(transitive = _modules(targets)),
            samples = depset(transitive = _samples(targets)),
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
        "once": attr.label_list(
            cfg = built_once,
            providers = [[CcInfo], [OperatorInfo]],
            doc = "As `plain`; the test that builds the wheel again does not compile these again, " +
                  "which takes minutes.",
        ),
        "plain": attr.label_list(
            cfg = plain_wheel,
            providers = [[CcInfo], [OperatorInfo]],
            doc = "Those that are compiled as for the plain wheel, whatever else a wheel has.",
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
)

def _operator_package_impl(ctx):
    outputs = {}
    for module in depset(transitive = _modules(ctx.attr.kernels)).to_list():
        if module.name in outputs:
            fail("two kernels have an operator's module of the name %s: %s and %s" %
                 (module.name, outputs[module.name].owner, module.file.owner))
        outputs[module.name] = module.file
    files = []
    for name, file in outputs.items():
        output = ctx.actions.declare_file("%s/%s.py" % (ctx.label.name, name))
        ctx.actions.symlink(output = output, target_file = file)
        files.append(output)
    return [DefaultInfo(files = depset(files))]

operator_package = rule(
    implementation = _operator_package_impl,
    doc = "The modules of the kernels' operators, in a folder of this rule's name.",
    attrs = {
        "kernels": attr.label_list(providers = [OperatorInfo], mandatory = True),
    },
)

def _operator_samples_impl(ctx):
    return [DefaultInfo(files = depset(transitive = _samples(ctx.attr.kernels)))]

operator_samples = rule(
    implementation = _operator_samples_impl,
    doc = "The samples.py of the kernels' folders, for tests.",
    attrs = {
        "kernels": attr.label_list(providers = [OperatorInfo], mandatory = True),
    },
)
