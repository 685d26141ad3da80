"""The wheel of //integrations/torch_tpu."""

load(":python_env.bzl", "PythonEnvInfo")

def _torch_tpu_wheel_impl(ctx):
    env = ctx.attr._python[PythonEnvInfo]
    folder = ctx.actions.declare_directory(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add("-I")
    arguments.add("-B")
    arguments.add(ctx.file.package)
    arguments.add("--project", ctx.file.project)
    arguments.add_all(ctx.files.srcs, before_each = "--source")
    arguments.add_all(ctx.files.shared, before_each = "--shared")
    arguments.add_all(ctx.files.libraries, before_each = "--library")
    if ctx.attr.unpacked:
        arguments.add("--unpacked")
    arguments.add("--out", folder.path)
    ctx.actions.run(
        executable = env.interpreter,
        arguments = [arguments],
        inputs = [ctx.file.package, ctx.file.project, env.stamp] +
                 ctx.files.srcs + ctx.files.shared + ctx.files.libraries,
        outputs = [folder],
        mnemonic = "TorchTpuWheel",
        progress_message = "Putting %{label} together",
    )
    return [DefaultInfo(files = depset([folder]))]

torch_tpu_wheel = rule(
    implementation = _torch_tpu_wheel_impl,
    doc = "A folder of this name with the wheel of //integrations/torch_tpu.",
    attrs = {
        "libraries": attr.label_list(allow_files = [".so"], doc = "Shared libraries in the package."),
        "package": attr.label(
            allow_single_file = [".py"],
            mandatory = True,
            doc = "The program that puts the wheel together.",
        ),
        "project": attr.label(allow_single_file = [".toml"], mandatory = True),
        "shared": attr.label_list(
            allow_files = True,
            doc = "torch_xla_ext's Python files, of which the program takes some.",
        ),
        "srcs": attr.label_list(allow_files = True, doc = "The package's own files."),
        "unpacked": attr.bool(doc = "The folder has the wheel's files instead, for PYTHONPATH."),
        "_python": attr.label(default = "@python//:python", providers = [PythonEnvInfo]),
    },
)
