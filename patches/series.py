"""Reads the patch series: one folder a release, with a `series` file and patches in mail form."""

import argparse
import dataclasses
import email
import email.header
import email.utils
import re
from pathlib import Path

_FOLDER_PREFIX = "torch_xla-"


class SeriesError(Exception):
    """A series that cannot be read; the text names the file."""


@dataclasses.dataclass(frozen=True)
class Patch:
    """One patch as `git format-patch` writes it."""

    path: Path
    author: tuple[str, str]
    """Name and address."""
    subject: str
    """Without `[PATCH n/m]`."""
    number: tuple[int, int]
    """n and m of `[PATCH n/m]`."""
    message: str
    """The commit message below its subject."""
    stat_files: frozenset[str]
    """What the diffstat of the mail names."""
    diff: str

    @property
    def diff_files(self) -> frozenset[str]:
        """The files that the diff changes, makes or removes."""
        names = re.findall(r"^diff --git a/(\S+) b/(\S+)$", self.diff, re.MULTILINE)
        return frozenset(name for pair in names for name in pair)


@dataclasses.dataclass(frozen=True)
class Series:
    """The patches for one release of pytorch/xla."""

    folder: Path
    commit: str
    """The commit of the release."""
    patches: tuple[Patch, ...]

    @property
    def release(self) -> str:
        return self.folder.name.removeprefix(_FOLDER_PREFIX)

    @property
    def tag(self) -> str:
        return "v" + self.release


def read_patch(path: Path) -> Patch:
    """Reads a patch file; raises SeriesError if it has not the form of `git format-patch`."""
    text = path.read_text(encoding="utf-8")
    if not re.match(r"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001\n", text):
        raise SeriesError(f"{path}: does not begin as `git format-patch` begins")
    mail = email.message_from_string(text.split("\n", 1)[1])
    subject = str(email.header.make_header(email.header.decode_header(mail["Subject"] or "")))
    subject = re.sub(r"\n\s", " ", subject)
    found = re.fullmatch(r"\[PATCH (\d+)/(\d+)\] (.+)", subject)
    if not found:
        raise SeriesError(f"{path}: the subject is not `[PATCH n/m] …`: {subject}")
    body = mail.get_payload()
    if not isinstance(body, str) or not mail["From"] or not mail["Date"]:
        raise SeriesError(f"{path}: From, Date or text is missing")
    parts = re.split(r"^---\n", body, maxsplit=1, flags=re.MULTILINE)
    if len(parts) != 2 or "\ndiff --git " not in parts[1]:
        raise SeriesError(f"{path}: there is no `---` line with a diff below")
    stat, diff = parts[1].split("\ndiff --git ", 1)
    return Patch(
        path=path,
        author=email.utils.parseaddr(mail["From"]),
        subject=found[3],
        number=(int(found[1]), int(found[2])),
        message=parts[0].strip(),
        stat_files=frozenset(re.findall(r"^ (\S+) +\| ", stat, re.MULTILINE)),
        diff="diff --git " + diff,
    )


def load(folder: Path) -> Series:
    """Reads the series of one release: a comment with its commit, then a patch a line."""
    path = folder / "series"
    if not path.is_file():
        raise SeriesError(f"{path} is missing")
    text = path.read_text(encoding="utf-8")
    commit = re.match(r"# pytorch/xla (\S+) ([0-9a-f]{40})\n", text)
    if not commit or commit[1] != "v" + folder.name.removeprefix(_FOLDER_PREFIX):
        raise SeriesError(f"{path}: the first line is not `# pytorch/xla TAG COMMIT`")
    names = [line for line in text.splitlines()[1:] if line and not line.startswith("#")]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        raise SeriesError(f"{path}: names no patch or missing ones: {', '.join(missing)}")
    return Series(folder, commit[2], tuple(read_patch(folder / name) for name in names))


def add_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--patches`, the folder for `load_all`."""
    parser.add_argument(
        "--patches",
        type=Path,
        default=Path(__file__).resolve().parent,
        help="the folder with the series, a folder for each release (default: this one)",
    )


def load_all(folder: Path) -> list[Series]:
    """Reads every series under `folder`, in the order of the releases."""
    folders = sorted(
        (path for path in folder.glob(_FOLDER_PREFIX + "*") if path.is_dir()),
        key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)],
    )
    if not folders:
        raise SeriesError(f"there is no folder {_FOLDER_PREFIX}… in {folder}")
    return [load(path) for path in folders]
