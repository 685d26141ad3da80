"""Adds the kernels' folders to the wheel: the kernels themselves, and the modules of their
operators."""

OperatorInfo = provider(
    doc = "Python modules that a wheel has as ops.<name> of its package.",
    fields = {
        "modules": "depset of structs: name (string), file (File)",
        "samples": "depset of Files: what the operators are tested with",
    },
)

def collect_modules(targets):
    """Returns the depsets of modules that targets have."""
    return [target[OperatorInfo].modules for target in targets if OperatorInfo in target]

def collect_samples(targets):
    """Returns the depsets of samples that targets have."""
    return [target[OperatorInfo].samples for target in targets if OperatorInfo in target]

def _operator_module_impl(ctx):
    module = struct(name = ctx.attr.module or ctx.label.name, file = ctx.file.src)
    return [
        DefaultInfo(files = depset([ctx.file.src])),
        OperatorInfo(
            modules = depset([module], transitive = collect_modules(ctx.attr.deps)),
            samples = depset(ctx.files.samples, transitive = collect_samples(ctx.attr.deps)),
        ),
    ]

operator_module = rule(
    implementation = _operator_module_impl,
    doc = "A Python file that a wheel has as ops.<module> of its package, torch_xla_ext or torch_xla_gpu.",
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
            doc = "The samples with which tests/ops tests the module's operators.",
        ),
        "src": attr.label(allow_single_file = [".py"], mandatory = True),
    },
)

def _operator_package_impl(ctx):
    outputs = {}
    for module in depset(transitive = collect_modules(ctx.attr.kernels)).to_list():
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
    return [DefaultInfo(files = depset(transitive = collect_samples(ctx.attr.kernels)))]

operator_samples = rule(
    implementation = _operator_samples_impl,
    doc = "The samples.py of the kernels' folders, for tests.",
    attrs = {
        "kernels": attr.label_list(providers = [OperatorInfo], mandatory = True),
    },
)
