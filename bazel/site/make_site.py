"""Run MkDocs on copies of pages from several folders of the repository."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="mkdocs.yml")
    parser.add_argument("--output", type=Path, required=True, help="folder for the site")
    parser.add_argument("files", nargs="+", type=Path, help="pages, and files that they link to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder, "pages")
        for file in args.files:
            target = pages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        config = Path(folder, "mkdocs.yml")
        shutil.copy(args.config, config)
        site = args.output.resolve()
        result = subprocess.run(
            [
                *(sys.executable, "-B", "-m", "mkdocs", "build", "--strict", "--quiet"),
                *("--config-file", config, "--site-dir", site),
            ],
            cwd=folder,
            check=False,
        )
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
