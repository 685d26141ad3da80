"""Make the rows of the tables of replaced functions."""

from functools import partial

from xla_kernels.replacement import Fix


def fix(name: str, versions: str, replaces: dict[str, str], **options: object) -> Fix:
    """Return a row. A replacement's module without a package name is in this package."""
    replaces = {
        target: make if "." in make else f"{__package__}.{make}"
        for target, make in replaces.items()
    }
    return Fix(name, versions, replaces=replaces, **options)


torch_fix = partial(fix, versions="torch 2.8")
torch_xla_fix = partial(fix, versions="torch_xla 2.8")
