"""Edit the text files in a wheel's .dist-info folder."""

from __future__ import annotations

import configparser
import io
import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metadata:
    """A METADATA file: its headers in their order, and the description."""

    headers: list[tuple[str, str]]
    description: str

    @classmethod
    def parse(cls, text: str) -> Metadata:
        head, _, description = text.partition("\n\n")
        headers = []
        for line in head.splitlines():
            name, colon, value = line.partition(": ")
            if not colon:
                raise ValueError(f"METADATA has a line that is not a header: {line!r}")
            headers.append((name, value))
        return cls(headers, description)

    def get(self, name: str) -> str:
        """Return the one value of header `name`."""
        values = [value for key, value in self.headers if key == name]
        if len(values) != 1:
            raise ValueError(f"METADATA has {len(values)} headers {name}, expected one")
        return values[0]

    def text(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.headers]
        return "\n".join(lines) + "\n\n" + self.description


@dataclass(frozen=True)
class Edits:
    """The differences between our METADATA and the upstream wheel's."""

    version: str
    summary: str
    description: str
    license_files: list[str]
    extras: dict[str, list[str]] = field(default_factory=dict)


def edit_metadata(upstream: str, edits: Edits) -> str:
    """Return METADATA of our wheel; requirements, extras and authors stay as in `upstream`."""
    replaced = {
        # The first version in which `License-File` names a path under .dist-info/licenses.
        "Metadata-Version": "2.4",
        "Name": "torch_xla",
        "Version": edits.version,
        "Summary": edits.summary,
        "Description-Content-Type": "text/markdown",
    }
    metadata = Metadata.parse(upstream)
    headers = []
    for name, value in metadata.headers:
        if name == "License-File":
            continue
        headers.append((name, replaced.pop(name, value)))
    headers += replaced.items()
    headers += [("License-File", path) for path in edits.license_files]
    for extra, requirements in sorted(edits.extras.items()):
        if ("Provides-Extra", extra) in headers:
            raise ValueError(
                f"the upstream wheel already has an extra `{extra}`: choose another name"
            )
        headers.append(("Provides-Extra", extra))
        headers += [("Requires-Dist", f'{r}; extra == "{extra}"') for r in requirements]
    return Metadata(headers, edits.description).text()


def edit_entry_points(upstream: str, added: dict[str, list[str]]) -> str:
    """Return entry_points.txt with `added`, {group: ["name = module:object"]}."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # names are case-sensitive
    parser.read_string(upstream)
    for group, lines in added.items():
        if not parser.has_section(group):
            parser.add_section(group)
        for line in lines:
            name, equals, target = (part.strip() for part in line.partition("="))
            if not equals or not re.fullmatch(r"[\w.]+(:[\w.]+)?", target):
                raise ValueError(f"entry point `{line}` is not `name = module:object`")
            if parser.has_option(group, name):
                raise ValueError(
                    f"the upstream wheel has an entry point `{name}` in {group} already"
                )
            parser.set(group, name, target)
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def edit_version_py(upstream: str, upstream_version: str, version: str) -> str:
    """Return torch_xla/version.py with our version and unchanged revisions.

    It also imports our module that must run before most of torch_xla.
    """
    text, count = re.subn(
        rf"^__version__ = '{re.escape(upstream_version)}'$",
        f"__version__ = '{version}'",
        upstream,
        flags=re.MULTILINE,
    )
    if count != 1:
        raise ValueError(
            f"torch_xla/version.py has {count} lines `__version__ = '{upstream_version}'`, "
            "expected one"
        )
    return f"{text.rstrip()}\n\nimport torch_xla_ext_startup.lazy_dynamo  # noqa: F401\n"


def wheel_file(tag: str) -> str:
    """Return the WHEEL file."""
    return (
        "Wheel-Version: 1.0\n"
        "Generator: bazel/wheel/assemble.py\n"
        "Root-Is-Purelib: false\n"
        f"Tag: {tag}\n"
    )
