"""develop: an environment for work on the project, whose Python files are the checkout's."""

load(":python_env.bzl", "PythonEnvInfo")
load(":test_binaries.bzl", "TEST_BINARIES", "labels_of")
load(":wheel.bzl", "WheelInfo")

def _develop_impl(ctx):
    python = ctx.attr._python[PythonEnvInfo]
    wheel = ctx.attr.wheel[WheelInfo]
    manifest = ctx.actions.declare_file(ctx.label.name + ".json")
    binaries = {}
    for target, variable in ctx.attr.binaries.items():
        paths = [file.short_path for file in target[DefaultInfo].files.to_list()]
        binaries[variable] = binaries.get(variable, []) + paths
    ctx.actions.write(manifest, json.encode_indent({
        "binaries": binaries,
        "locks": [lock.short_path for lock in ctx.files.locks],
        "sources": {path: file.short_path for path, file in wheel.sources.items()},
        "wheel": wheel.folder.short_path,
    }))
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(
        script,
        "\n".join([
            "#!/bin/sh",
            "# Bazel starts this in the runfiles folder.",
            "exec '%s' -B '%s' '%s' \"$@\"" % (
                python.interpreter,
                ctx.file._develop.short_path,
                manifest.short_path,
            ),
            "",
        ]),
        is_executable = True,
    )
    files = [
        ctx.file._develop,
        ctx.file._fetch,
        ctx.file._run,
        manifest,
        python.stamp,
        wheel.folder,
    ]
    files += ctx.files.binaries + ctx.files.locks + wheel.sources.values()
    return [DefaultInfo(executable = script, runfiles = ctx.runfiles(files = files))]

_develop = rule(
    implementation = _develop_impl,
    doc = "`bazel run` makes `.venv` in the checkout, or brings it up to date.",
    attrs = {
        "binaries": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Libraries that tests load, each with the variable that has its path.",
        ),
        "locks": attr.label_list(
            allow_files = [".lock"],
            doc = "Lock files of the packages in the environment.",
        ),
        "wheel": attr.label(mandatory = True, providers = [WheelInfo]),
        "_develop": attr.label(allow_single_file = True, default = "//bazel/develop:develop.py"),
        "_fetch": attr.label(allow_single_file = True, default = "//bazel/pip:fetch.py"),
        "_python": attr.label(default = "@python//:python", providers = [PythonEnvInfo]),
        "_run": attr.label(allow_single_file = True, default = "//bazel/example:run.py"),
    },
    executable = True,
)

def develop(name, **kwargs):
    """The environment, with all libraries of test_binaries.bzl.

    Args:
      name: the target to run.
      **kwargs: wheel and locks.
    """
    _develop(
        name = name,
        testonly = True,
        binaries = {
            label: variable
            for variable in TEST_BINARIES
            for label in labels_of([variable])
        },
        **kwargs
    )
