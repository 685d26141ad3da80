"""Tests that are pytest files: pytest_test for plain Python, wheel_test for the built wheel."""

load(":python_env.bzl", "PythonEnvInfo", "PythonPackagesInfo")
load(":test_binaries.bzl", "environment_of", "labels_of")

def _pytest_test_impl(ctx):
    env = ctx.attr.python[PythonEnvInfo]
    packages = [target[PythonPackagesInfo] for target in ctx.attr.packages]
    paths = ctx.attr.imports + [file.short_path for file in ctx.files.wheel]
    paths += [target.folder for target in packages]
    tests = [src for src in ctx.files.srcs if src.basename.endswith("_test.py")]
    if not tests:
        fail("%s: srcs have no file whose name ends with _test.py" % ctx.label)
    runner = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(
        runner,
        "\n".join([
            "#!/bin/sh",
            "# Bazel starts this in the runfiles folder with the target's `args`.",
            "exec '%s' -B '%s' %s -- %s \"$@\"" % (
                env.interpreter,
                ctx.file._runner.short_path,
                " ".join(["--path='%s'" % path for path in paths] +
                         ["--preload='%s'" % module for module in ctx.attr.preload]),
                " ".join(["'%s'" % src.short_path for src in tests]),
            ),
            "",
        ]),
        is_executable = True,
    )
    runfiles = ctx.runfiles(
        files = ctx.files.srcs + ctx.files.data + ctx.files.wheel + ctx.files.packages +
                [ctx.file._runner, ctx.file._forked, env.stamp],
    )
    runfiles = runfiles.merge_all([
        target[DefaultInfo].default_runfiles
        for target in ctx.attr.data
    ])
    targets = ctx.attr.data + ctx.attr.srcs
    return [
        DefaultInfo(executable = runner, runfiles = runfiles),
        RunEnvironmentInfo(environment = {
            name: ctx.expand_location(value, targets)
            for name, value in ctx.attr.env.items()
        }),
    ]

pytest_test = rule(
    implementation = _pytest_test_impl,
    doc = """Runs pytest on `srcs`, in one process or, with `preload`, in one for each file.

`--test_filter=EXPRESSION` is pytest's `-k`; each pytest case is in the test's XML output.
""",
    attrs = {
        "data": attr.label_list(allow_files = True, doc = "Files that the tests read."),
        "env": attr.string_dict(
            doc = "Environment variables; $(location), $(rootpath) and the like are expanded.",
        ),
        "imports": attr.string_list(
            doc = "Folders, from the workspace's root, to put on PYTHONPATH.",
        ),
        "packages": attr.label_list(
            doc = "Folders of packages to put on PYTHONPATH too.",
            providers = [PythonPackagesInfo],
        ),
        "preload": attr.string_list(
            doc = "Modules to import once. Each file then runs in a process that is forked from " +
                  "there, because importing takes longer than most files.",
        ),
        "python": attr.label(
            default = "@dev_tools//:python",
            doc = "The environment that has pytest and what the tests import.",
            providers = [PythonEnvInfo],
        ),
        "srcs": attr.label_list(
            allow_files = [".py"],
            mandatory = True,
            doc = "Test files, NAME_test.py, and the conftest.py and helper modules beside them.",
        ),
        "wheel": attr.label(
            allow_files = True,
            doc = "An installed_wheel to put on PYTHONPATH.",
        ),
        "_forked": attr.label(
            allow_single_file = True,
            default = "//bazel/pytest:forked.py",
        ),
        "_runner": attr.label(
            allow_single_file = True,
            default = "//bazel/pytest:runner.py",
        ),
    },
    test = True,
)

def wheel_test(
        name,
        srcs,
        binaries = [],
        data = [],
        env = {},
        imports = [],
        compiles = False,
        preload = ["torch_xla"],
        **kwargs):
    """Runs pytest files against the built wheel, installed together with the torch that it is for.

    Args:
      name: the test.
      srcs: test files, and the conftest.py and helper modules beside them.
      binaries: the variables of test_binaries.bzl for the compiled libraries that the tests load.
      data: files that the tests read.
      env: environment variables. If they are not among them, PJRT_DEVICE is CPU, and XLA_FLAGS asks
        for quick compilation (pytest/runner.py). With `"XLA_FLAGS": ""`, XLA compiles as for a user.
      imports: folders for PYTHONPATH besides tests, which has the package `testing`.
      compiles: whether most tests call torch.compile. The imports of its first call, which take
        three seconds, are then made once, too (tests/testing/compilers.py).
      preload: modules to import once, before the tests' processes are forked. **kwargs: passed to
      pytest_test: args, size, timeout, tags and the like.
    """
    pytest_test(
        name = name,
        srcs = srcs + (["//tests:compilers"] if compiles else []),
        data = data + labels_of(binaries),
        env = environment_of(binaries) | env,
        imports = ["tests"] + imports,
        preload = preload + (["testing.compilers"] if compiles else []),
        python = "@test_env//:python",
        wheel = "//bazel/wheel:installed",
        **kwargs
    )

def wheel_tests(
        name,
        tests = [],
        exclude = [],
        srcs = [],
        timeout = "long",
        preload = [],
        **kwargs):
    """Several wheel_tests in one: torch_xla is imported once, and each file has its own process.

    `--test_filter=NAME_test` runs one of the files.

    Args:
      name: the test.
      tests: names of test files, without .py; all of the folder if it is left out.
      exclude: names to leave out of all, perhaps with a `*`.
      srcs: the conftest.py and helper modules beside them.
      timeout: for all files together.
      preload: further modules that most files import. **kwargs: passed to wheel_test: compiles and
      the like.
    """
    files = [test + ".py" for test in tests] or native.glob(
        ["*_test.py"],
        exclude = [test + ".py" for test in exclude],
    )
    wheel_test(
        name = name,
        srcs = files + srcs,
        preload = ["torch_xla"] + preload,
        timeout = timeout,
        **kwargs
    )
