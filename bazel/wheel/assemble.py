"""Assemble our wheel from the upstream torch_xla wheel and this project's additions.

The rule in bazel/wheel.bzl runs this with one JSON file, whose keys are the fields of `Spec`.
Upstream's files are copied in compressed form; only the metadata files differ.
"""

import base64
import csv
import hashlib
import io
import json
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from metadata import Edits, Metadata, edit_entry_points, edit_metadata, edit_version_py, wheel_file
from platform_tag import platform_tag
from raw_zip import RawZipWriter


@dataclass(frozen=True)
class Spec:
    """The contents of a wheel: dictionaries from paths in the wheel to files on disk."""

    upstream_wheel: str
    out_dir: str
    local_version: str
    archs: list[str]  # the GPU architectures, if they are not the usual ones
    summary: str
    description: str
    moved: dict[str, str]  # path in the upstream wheel: path in ours
    replaced: list[str]  # the files that ours replace
    files: dict[str, str]
    binaries: dict[str, str]  # shared libraries of ours; they decide the platform tag
    licenses: dict[str, str]  # path under .dist-info/licenses
    entry_points: dict[str, list[str]]
    extras: dict[str, list[str]]


class UpstreamWheel:
    """The upstream wheel, opened for reading."""

    def __init__(self, path: Path) -> None:
        self.zip = zipfile.ZipFile(path)
        self.name, self.version, *_, self.tag = path.name.removesuffix(".whl").split("-", 2)
        self.dist_info = f"{self.name}-{self.version}.dist-info"
        rows = csv.reader(io.StringIO(self.text("RECORD")))
        self.record = {name: (digest, size) for name, digest, size in rows if digest}

    def text(self, name: str) -> str:
        """Return a file of the .dist-info folder."""
        return self.zip.read(f"{self.dist_info}/{name}").decode()

    def licenses(self) -> dict[str, bytes]:
        """Return the license files that METADATA lists, from either of their usual folders."""
        headers = Metadata.parse(self.text("METADATA")).headers
        names = [value for name, value in headers if name == "License-File"]
        if not names:
            raise ValueError(
                "the upstream wheel lists no license file, expected torch_xla's LICENSE"
            )
        result = {}
        for name in names:
            # Metadata 2.4 keeps them in licenses/, older versions beside METADATA.
            new = f"licenses/{name}"
            path = new if f"{self.dist_info}/{new}" in self.record else name
            result[name] = self.text(path).encode()
        return result


class WheelWriter:
    """Writes a wheel's entries, and collects their lines for RECORD."""

    def __init__(self, out: RawZipWriter) -> None:
        self._out = out
        self._record: dict[str, tuple[str, str]] = {}

    def add(self, name: str, content: bytes, *, executable: bool = False) -> None:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self._remember(name, (f"sha256={digest}", str(len(content))))
        self._out.add(name, content, executable=executable)

    def copy(self, name: str, upstream: UpstreamWheel, source: str) -> None:
        self._remember(name, upstream.record[source])
        self._out.copy(name, upstream.zip, upstream.zip.getinfo(source))

    def finish(self, record_name: str) -> None:
        """Add RECORD, the last entry."""
        rows = io.StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        writer.writerows((name, *row) for name, row in self._record.items())
        writer.writerow((record_name, "", ""))
        self._out.add(record_name, rows.getvalue().encode())

    def _remember(self, name: str, row: tuple[str, str]) -> None:
        if name in self._record:
            raise ValueError(f"{name} would be in the wheel twice")
        self._record[name] = row


def _content_version(upstream: UpstreamWheel, spec: Spec) -> str:
    """Return the local version: `local_version`, architectures, eight digits of a hash.

    The digits let pip recognize a changed wheel. The first one is a letter, because a numeric part
    of a version loses its leading zeros.
    """
    content = hashlib.sha256()
    files = {**spec.files, **spec.binaries, **spec.licenses, "METADATA": spec.description}
    digests = {
        name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in files.items()
    }
    settings = [spec.summary, spec.moved, spec.replaced, spec.entry_points, spec.extras]
    content.update(json.dumps([digests, upstream.record, settings], sort_keys=True).encode())
    found = re.search("[a-f][0-9a-f]{7}", content.hexdigest())
    digits = found[0] if found else "a" + content.hexdigest()[:7]
    return ".".join([spec.local_version, *(f"sm{arch}" for arch in spec.archs), digits])


def _dist_info_files(
    upstream: UpstreamWheel, spec: Spec, version: str, tag: str
) -> dict[str, bytes]:
    """Return the contents of our .dist-info folder, except RECORD."""
    licenses = {f"torch_xla/{name}": content for name, content in upstream.licenses().items()}
    licenses |= {name: Path(path).read_bytes() for name, path in spec.licenses.items()}
    edits = Edits(
        version=version,
        summary=spec.summary,
        description=Path(spec.description).read_text(encoding="utf-8"),
        license_files=sorted(licenses),
        extras=spec.extras,
    )
    packages = {
        name.split("/")[0].removesuffix(".py") for name in spec.files if name.endswith(".py")
    }
    top_level = sorted({*upstream.text("top_level.txt").split(), *packages})
    texts = {
        "METADATA": edit_metadata(upstream.text("METADATA"), edits),
        "WHEEL": wheel_file(tag),
        "entry_points.txt": edit_entry_points(upstream.text("entry_points.txt"), spec.entry_points),
        "top_level.txt": "".join(f"{name}\n" for name in top_level),
    }
    files = {name: text.encode() for name, text in texts.items()}
    return files | {f"licenses/{name}": content for name, content in licenses.items()}


def assemble(spec: Spec) -> Path:
    """Write the wheel, with its full file name, into `spec.out_dir` and return its path."""
    upstream = UpstreamWheel(Path(spec.upstream_wheel))
    if Metadata.parse(upstream.text("METADATA")).get("Version") != upstream.version:
        raise ValueError(
            f"{spec.upstream_wheel}: its name and its METADATA give different versions"
        )
    version = f"{upstream.version}+{_content_version(upstream, spec)}"
    python_tags, upstream_platform = upstream.tag.rsplit("-", 1)
    platform = platform_tag([Path(p) for p in spec.binaries.values()], upstream_platform)
    tag = f"{python_tags}-{platform}"
    version_py = f"{upstream.name}/version.py"

    generated = {
        version_py: edit_version_py(
            upstream.zip.read(version_py).decode(), upstream.version, version
        ).encode()
    }
    added = {**spec.files, **spec.binaries}
    copied = {
        spec.moved.get(name, name): name
        for name in upstream.record
        if name not in {*generated, *spec.replaced}
        and not name.startswith(upstream.dist_info + "/")
    }
    unknown = sorted({*spec.moved, *spec.replaced} - set(upstream.record))
    if unknown:
        raise ValueError(
            f"{spec.upstream_wheel} has no {', '.join(unknown)}, which should be moved or replaced"
        )
    clashes = sorted({*copied, *generated} & set(added))
    if clashes:
        raise ValueError(f"the upstream wheel already contains {', '.join(clashes)}")

    path = Path(spec.out_dir, f"{upstream.name}-{version}-{tag}.whl")
    with RawZipWriter(path) as out:
        writer = WheelWriter(out)
        for name in sorted({*copied, *generated, *added}):
            if name in copied:
                writer.copy(name, upstream, copied[name])
            elif name in generated:
                writer.add(name, generated[name])
            else:
                content = Path(added[name]).read_bytes()
                writer.add(name, content, executable=name in spec.binaries)
        dist_info = f"{upstream.name}-{version}.dist-info"
        files = _dist_info_files(upstream, spec, version, tag)
        for name in sorted(files):
            writer.add(f"{dist_info}/{name}", files[name])
        writer.finish(f"{dist_info}/RECORD")
    return path


def main() -> None:
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        print("wheel:", assemble(spec))
    except ValueError as error:
        sys.exit(f"cannot assemble the wheel: {error}")


if __name__ == "__main__":
    main()
