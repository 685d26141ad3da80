"""example: a program that `bazel run` runs with the built wheel, in an environment of its own."""

load(":python_env.bzl", "PythonEnvInfo")

def _example_impl(ctx):
    python = ctx.attr._python[PythonEnvInfo]
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    arguments = ["--wheel-dir=" + ctx.files._wheel[0].short_path]
    arguments += ["--lock=" + lock.short_path for lock in ctx.files.locks]
    if ctx.file.setup:
        arguments.append("--setup=" + ctx.file.setup.short_path)
    arguments.append(ctx.file.src.short_path)
    ctx.actions.write(
        script,
        "\n".join([
            "#!/bin/sh",
            "# Bazel starts this in the runfiles folder.",
            "exec '%s' -B '%s' %s \"$@\"" % (
                python.interpreter,
                ctx.file._run.short_path,
                " ".join(["'%s'" % argument for argument in arguments]),
            ),
            "",
        ]),
        is_executable = True,
    )
    files = [ctx.file.src, ctx.file._run, ctx.file._fetch, python.stamp] + ctx.files.locks
    files += [ctx.file.setup] if ctx.file.setup else []
    return [DefaultInfo(
        executable = script,
        runfiles = ctx.runfiles(files = files + ctx.files._wheel + ctx.files.data),
    )]

example = rule(
    implementation = _example_impl,
    doc = """`bazel run` builds the wheel, installs it with torch into an environment that all
examples share and that is kept, and runs the example there.""",
    attrs = {
        "data": attr.label_list(allow_files = True, doc = "Files that the example reads."),
        "locks": attr.label_list(
            allow_files = [".lock"],
            doc = "Lock files of more packages, which are installed without what they require.",
        ),
        "setup": attr.label(
            allow_single_file = [".py"],
            doc = "A script that installs what the example needs besides, run there once. `data` " +
                  "has its files.",
        ),
        "src": attr.label(allow_single_file = [".py"], mandatory = True, doc = "The example."),
        "_fetch": attr.label(allow_single_file = True, default = "//bazel/pip:fetch.py"),
        "_python": attr.label(default = "@python//:python", providers = [PythonEnvInfo]),
        "_run": attr.label(allow_single_file = True, default = "//bazel/example:run.py"),
        "_wheel": attr.label(default = "//:wheel"),
    },
    executable = True,
)
