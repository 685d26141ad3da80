"""Create a project with a new kernel: `python -m torch_xla_ext new-kernel NAME DIR`."""

import importlib.util
import keyword
import re
from pathlib import Path

_TEMPLATES = Path(__file__).parent / "template"


def write(name: str, folder: Path) -> list[Path]:
    """Write a kernel, its build files, its operator and its tests.

    Args:
        name: the operator's name in snake case; the target of `my_op` is XlaGpuMyOp.
        folder: where to write; created if it does not exist.

    Returns:
        The paths of the written files.

    Raises:
        ValueError: the name is not a valid name in Python and C++, or is that of a Python module.
        FileExistsError: a file exists already; nothing is written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ValueError(
            f"{name!r} is not a valid kernel name: use lower-case letters, digits and single "
            "underscores, as in my_op"
        )
    module = importlib.util.find_spec(name)
    # A folder has no origin; existing files are refused below.
    if (
        module
        and module.origin
        and Path(module.origin).parent not in (Path.cwd(), folder.resolve())
    ):
        raise ValueError(
            f"{name!r} is not a valid kernel name: {name}.py would hide a Python module "
            "of that name"
        )
    camel = "".join(part.capitalize() for part in name.split("_"))
    values = {
        "NAME": name,
        "CAMEL": camel,
        "TARGET": f"XlaGpu{camel}",
        "GUARD": f"{name.upper()}_H_",
        "CUHGUARD": f"{name.upper()}_CUH_",
    }
    files = {}
    for template in sorted(_TEMPLATES.glob("*.in")):
        text = re.sub("@([A-Z]+)@", lambda match: values[match[1]], template.read_text())
        files[folder / template.name.removesuffix(".in").replace("kernel", name)] = text
    for path in files:
        if path.exists():
            raise FileExistsError(f"{path} exists already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
    return list(files)
