"""Interpreters with packages, outside Bazel's trees, for actions and tests."""

PythonEnvInfo = provider(
    doc = "An interpreter outside of Bazel's trees, with the packages installed beside it.",
    fields = {
        "interpreter": "absolute path of the interpreter (string)",
        "stamp": "File that changes when the packages do; an input of every action that uses them",
    },
)

def _python_env_impl(ctx):
    return [
        DefaultInfo(files = depset([ctx.file.stamp])),
        PythonEnvInfo(interpreter = ctx.attr.interpreter, stamp = ctx.file.stamp),
    ]

PythonPackagesInfo = provider(
    doc = "Packages in a folder outside of Bazel's trees, for an interpreter's PYTHONPATH.",
    fields = {
        "folder": "absolute path of the folder (string)",
        "stamp": "File that changes when the packages do; an input of every action that uses them",
    },
)

def _python_packages_impl(ctx):
    return [
        DefaultInfo(files = depset([ctx.file.stamp])),
        PythonPackagesInfo(folder = ctx.attr.folder, stamp = ctx.file.stamp),
    ]

python_packages = rule(
    implementation = _python_packages_impl,
    doc = "Names a folder of packages outside of Bazel's trees. They never become runfiles.",
    attrs = {
        "folder": attr.string(mandatory = True, doc = "Absolute path of the folder."),
        "stamp": attr.label(
            allow_single_file = True,
            mandatory = True,
            doc = "File that changes when the packages do.",
        ),
    },
)

python_env = rule(
    implementation = _python_env_impl,
    doc = "Names an interpreter outside of Bazel's trees. Its packages never become runfiles.",
    attrs = {
        "interpreter": attr.string(mandatory = True, doc = "Absolute path of the interpreter."),
        "stamp": attr.label(
            allow_single_file = True,
            mandatory = True,
            doc = "File that changes when the interpreter or its packages do.",
        ),
    },
)
