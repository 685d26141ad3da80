"""The Python that the wheel is built for: `$PYTHON_BIN_PATH`, else `python3` on the PATH."""

_BUILD = """\
load("{rules}", "python_env")

package(default_visibility = ["//visibility:public"])

# Python.h and what it includes.
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)

# The machine's own interpreter: only its standard library may be used.
python_env(
    name = "python",
    interpreter = "{executable}",
    stamp = "python.json",
)
"""

def _python_repository_impl(rctx):
    chosen = rctx.os.environ.get("PYTHON_BIN_PATH") or "python3"
    path = chosen if "/" in chosen else rctx.which(chosen)
    result = rctx.execute([path, "-E", "-s", rctx.path(rctx.attr._probe)]) if path else None
    if not result or (result.return_code and not result.stderr.startswith("python: ")):
        fail("`%s`%s is not a Python that runs: install Python 3.11 (Debian: `apt-get install " % (
            chosen,
            " (PYTHON_BIN_PATH)" if "PYTHON_BIN_PATH" in rctx.os.environ else "",
        ) + "python3 python3-dev python3-pip python3-venv`) or set PYTHON_BIN_PATH to one")
    if result.return_code:
        fail(result.stderr.strip().removeprefix("python: "))
    info = json.decode(result.stdout)
    rctx.symlink(info["include"], "include")
    rctx.file("python.json", json.encode_indent(info) + "\n")
    rctx.file("python.bzl", "PYTHON = " + repr(info) + "\n")
    rctx.file("BUILD", _BUILD.format(rules = Label("//bazel:python_env.bzl"), **info))

python_repository = repository_rule(
    implementation = _python_repository_impl,
    doc = """Finds the Python to build for and its headers.

`@python//:python` is a `python_env`, `@python//:headers` a cc_library, and `@python//:python.bzl`
has the dictionary `PYTHON` with the wheel tag and the extension modules' suffix.
""",
    attrs = {
        "_probe": attr.label(
            allow_single_file = True,
            default = "//bazel/python:probe.py",
            doc = "The program that says what an interpreter is, or why it will not do.",
        ),
    },
    environ = ["PYTHON_BIN_PATH", "PATH"],
    configure = True,
    local = True,
)

def chosen_python(rctx):
    """Returns the dictionary PYTHON of a python_repository, for another repository rule.

    Reading it through its label makes that rule run again when another Python is chosen, but not
    when merely the PATH changes.

    Args:
      rctx: the repository context of a rule with `PYTHON_ATTR`.
    """
    return json.decode(rctx.read(rctx.attr.python))

PYTHON_ATTR = {
    "python": attr.label(
        default = "@python//:python.json",
        doc = "What a python_repository found.",
    ),
}
