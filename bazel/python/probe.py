"""Describe the running interpreter as JSON, or report why the wheel cannot be built for it.

The repository rule in bazel/python.bzl runs this, on any Python.
"""

import json
import os
import sys
import sysconfig

SUPPORTED = ("3.11", "3.12", "3.13")
REMEDY = (
    "install Python 3.11 (Debian: `apt-get install python3 python3-dev python3-pip python3-venv`) "
    "or set PYTHON_BIN_PATH to one"
)


def describe():
    """Return the facts about this interpreter that the build needs."""
    version = "{}.{}".format(*sys.version_info[:2])
    return {
        "executable": sys.executable,
        "version": version,
        "tag": "cp" + version.replace(".", ""),
        "implementation": getattr(getattr(sys, "implementation", None), "name", "unknown"),
        "platform": sysconfig.get_platform(),
        "include": sysconfig.get_paths()["include"],
        "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    }


def problem(info):
    """Return one sentence about why the interpreter is unsuitable, or None."""
    if info["implementation"] != "cpython" or info["version"] not in SUPPORTED:
        return (
            "{executable} is {implementation} {version}, but torch_xla 2.8.1 has wheels for "
            "CPython {supported}: {remedy}"
        ).format(supported=", ".join(SUPPORTED), remedy=REMEDY, **info)
    if info["platform"] != "linux-x86_64":
        return (
            "{executable} is for {platform}, but torch_xla 2.8.1 has wheels for linux-x86_64: "
            "build there, or in a container of that platform"
        ).format(**info)
    if not os.path.exists(os.path.join(info["include"], "Python.h")):
        return (
            "{executable} has no Python.h in {include}: install its headers (Debian: `apt-get "
            "install python3-dev`) or set PYTHON_BIN_PATH to another Python"
        ).format(**info)
    return None


def main():
    info = describe()
    sentence = problem(info)
    if sentence:
        # By the prefix, the rule recognizes a sentence for the user, not a traceback.
        sys.exit("python: " + sentence)
    print(json.dumps(info))


if __name__ == "__main__":
    main()
