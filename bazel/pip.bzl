"""Repositories from the Python package index, fetched by the chosen Python's pip.

Every package is pinned by version and SHA-256 in a lock file of bazel/pip/locks, which
bazel/pip/update_locks.py writes. The machine's pip configuration sets the index.
"""

load(":python.bzl", "PYTHON_ATTR", "chosen_python")

# Several GB take long on a slow connection; pip itself gives up if the network is down.
_TIMEOUT_S = 3600

_LOCK_ATTRS = {
    "lock": attr.label(
        allow_single_file = True,
        mandatory = True,
        doc = "The lock file: pip requirements, each with version and SHA-256.",
    ),
    "_fetch": attr.label(
        allow_single_file = True,
        default = "//bazel/pip:fetch.py",
        doc = "The program that runs pip and says in one sentence what went wrong.",
    ),
}

def _fetch(rctx, arguments):
    """Runs fetch.py on the rule's lock file; if it fails, stops the build with its message."""
    result = rctx.execute(
        [
            chosen_python(rctx)["executable"],
            rctx.path(rctx.attr._fetch),
        ] + arguments + ["--lock", rctx.path(rctx.attr.lock)],
        timeout = _TIMEOUT_S,
    )
    if result.return_code:
        fail("@%s: %s" % (rctx.name, result.stderr.strip() or "fetch.py was stopped"))

def _pip_archive_impl(rctx):
    python = chosen_python(rctx)
    rctx.report_progress("fetching and unpacking the wheels of " + rctx.attr.lock.name)
    rules = [rule.format(**python) for rule in rctx.attr.files]
    _fetch(rctx, ["extract", "--out", "."] +
                 (["--keep-wheels"] if rctx.attr.keep_wheels else []) + rules)
    rctx.template("BUILD", rctx.attr.build_file, {"{" + k + "}": v for k, v in python.items()})

pip_archive = repository_rule(
    implementation = _pip_archive_impl,
    doc = "Unpacks chosen files of locked wheels and adds a BUILD file.",
    attrs = _LOCK_ATTRS | PYTHON_ATTR | {
        "build_file": attr.label(
            allow_single_file = True,
            mandatory = True,
            doc = "The repository's BUILD file. `{ext_suffix}` and the other keys of PYTHON are " +
                  "replaced in it, as in `files`.",
        ),
        "files": attr.string_list(
            doc = "What to unpack: `PATTERN`, or `PATTERN=TARGET` to rename one file. A star in " +
                  "a pattern also matches slashes.",
        ),
        "keep_wheels": attr.bool(doc = "Also keep the wheels themselves."),
    },
)

_ENV_BUILD = """\
load("{rules}", "python_env")

python_env(
    name = "python",
    interpreter = "{interpreter}",
    stamp = "stamp",
    visibility = ["//visibility:public"],
)
"""

def _pip_env_impl(rctx):
    rctx.report_progress("installing the packages of " + rctx.attr.lock.name)
    _fetch(rctx, ["venv", "--out", "venv"])

    # The stamp contains everything that the environment depends on: the packages and the
    # interpreter.
    rctx.file("stamp", rctx.read(rctx.attr.lock) + rctx.read(rctx.attr.python))
    rctx.file("BUILD", _ENV_BUILD.format(
        interpreter = rctx.path("venv/bin/python"),
        rules = Label("//bazel:python_env.bzl"),
    ))

_PACKAGES_BUILD = """\
load("{rules}", "python_packages")

python_packages(
    name = "packages",
    folder = "{folder}",
    stamp = "stamp",
    visibility = ["//visibility:public"],
)
"""

def _pip_packages_impl(rctx):
    rctx.report_progress("installing the packages of " + rctx.attr.lock.name)
    _fetch(rctx, ["folder", "--out", "packages"])
    rctx.file("stamp", rctx.read(rctx.attr.lock) + rctx.read(rctx.attr.python))
    rctx.file("BUILD", _PACKAGES_BUILD.format(
        folder = rctx.path("packages"),
        rules = Label("//bazel:python_env.bzl"),
    ))

pip_packages = repository_rule(
    implementation = _pip_packages_impl,
    doc = "The packages of a lock file in a folder, to be used beside a pip_env's: `@NAME//:packages`.",
    attrs = _LOCK_ATTRS | PYTHON_ATTR,
)

pip_env = repository_rule(
    implementation = _pip_env_impl,
    doc = "A virtual environment with the packages of a lock file: `@NAME//:python`.",
    attrs = _LOCK_ATTRS | PYTHON_ATTR,
)
