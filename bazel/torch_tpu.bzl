"""The wheel of //integrations/torch_tpu."""

load(":python_env.bzl", "PythonEnvInfo")

def _path_in_wheel(file, strip_prefixes):
    for prefix in strip_prefixes:
        if file.short_path.startswith(prefix + "/"):
            return file.short_path.removeprefix(prefix + "/")
    fail("%s is in none of %s" % (file, strip_prefixes))

def _torch_tpu_wheel_impl(ctx):
    env = ctx.attr._python[PythonEnvInfo]
    folder = ctx.actions.declare_directory(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add("-I")
    arguments.add("-B")
    arguments.add(ctx.file.package)
    arguments.add("--project", ctx.file.project)
    for file in ctx.files.srcs:
        arguments.add("--file", "%s=%s" % (_path_in_wheel(file, ctx.attr.strip_prefixes), file.path))
    for file in ctx.files.libraries:
        arguments.add("--file", "torch_xla_gpu/%s=%s" % (file.basename, file.path))
    if ctx.attr.unpacked:
        arguments.add("--unpacked")
    arguments.add("--out", folder.path)
    ctx.actions.run(
        executable = env.interpreter,
        arguments = [arguments],
        inputs = [ctx.file.package, ctx.file.project, env.stamp] +
                 ctx.files.srcs + ctx.files.libraries,
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
        "srcs": attr.label_list(allow_files = True, doc = "The wheel's Python files."),
        "strip_prefixes": attr.string_list(doc = "The folders that stand for the wheel's root."),
        "unpacked": attr.bool(doc = "The folder has the wheel's files instead, for PYTHONPATH."),
        "_python": attr.label(default = "@python//:python", providers = [PythonEnvInfo]),
    },
)
