"""The Python that the wheel is built for: `$PYTHON_BIN_PATH`, else `python3` on the PATH.

Two things come from here: the repository rule `python_repository`, which finds the interpreter and
its headers, and `PythonEnvInfo`, by which rules get an interpreter with packages to run tools with.
"""

SUPPORTED_PYTHONS = ["3.11", "3.12", "3.13"]

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

_PROBE = """
import json, sys, sysconfig
print(json.dumps({
    "executable": sys.executable,
    "version": "%d.%d" % sys.version_info[:2],
    "tag": "cp%d%d" % sys.version_info[:2],
    "implementation": sys.implementation.name,
    "platform": sysconfig.get_platform(),
    "include": sysconfig.get_paths()["include"],
    "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
}))
"""

_BUILD = """\
load("@//bazel:python.bzl", "python_env")

package(default_visibility = ["//visibility:public"])

# Python.h and what it includes.
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)

# The interpreter as it is on the machine: only its standard library may be used.
python_env(
    name = "python",
    interpreter = "{executable}",
    stamp = "python.json",
)
"""

_REMEDY = "install Python 3.11 (Debian: `apt-get install python3 python3-dev python3-pip " + \
          "python3-venv`) or name another one with PYTHON_BIN_PATH"

def _python_repository_impl(rctx):
    chosen = rctx.os.environ.get("PYTHON_BIN_PATH") or "python3"
    path = chosen if "/" in chosen else rctx.which(chosen)
    if not path:
        fail("no program `%s` on the PATH: %s" % (chosen, _REMEDY))
    result = rctx.execute([path, "-I", "-c", _PROBE])
    if result.return_code:
        fail("`%s` is not a Python that runs (%s): %s" % (path, result.stderr.strip(), _REMEDY))
    info = json.decode(result.stdout)
    if info["version"] not in SUPPORTED_PYTHONS or info["implementation"] != "cpython":
        fail("%s is %s %s, but torch_xla has wheels for CPython %s: %s" % (
            info["executable"],
            info["implementation"],
            info["version"],
            ", ".join(SUPPORTED_PYTHONS),
            _REMEDY,
        ))
    if info["platform"] != "linux-x86_64":
        fail("this machine is %s, but torch_xla has wheels for linux-x86_64: " % info["platform"] +
             "build there, or in a container of that platform")
    if not rctx.path(info["include"] + "/Python.h").exists:
        fail("%s has no Python.h in %s: install the headers (Debian: `apt-get install " % (
            info["executable"],
            info["include"],
        ) + "python3-dev`) or name another Python with PYTHON_BIN_PATH")
    rctx.symlink(info["include"], "include")
    rctx.file("python.json", json.encode_indent(info) + "\n")
    rctx.file("python.bzl", "PYTHON = " + repr(info) + "\n")
    rctx.file("BUILD", _BUILD.format(**info))

python_repository = repository_rule(
    implementation = _python_repository_impl,
    doc = """Finds the Python to build for and its headers.

`@python//:python` is a `python_env`, `@python//:headers` a cc_library, and `@python//:python.bzl`
has the dictionary `PYTHON` with the wheel tag and the extension modules' suffix.
""",
    environ = ["PYTHON_BIN_PATH", "PATH"],
    configure = True,
    local = True,
)

def chosen_python(rctx):
    """Returns the dictionary PYTHON of @python, for another repository rule.

    Reading it through its label makes that rule run again when another Python is chosen, but not
    when merely the PATH changes.

    Args:
      rctx: the repository context of a rule with `PYTHON_ATTR`.
    """
    return json.decode(rctx.read(rctx.attr._python))

PYTHON_ATTR = {
    "_python": attr.label(default = "@python//:python.json", doc = "What @python found."),
}
