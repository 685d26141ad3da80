"""Run the commands of ``python -m torch_xla_ext``: doctor, targets, new-kernel, profile."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path


def _doctor(args: argparse.Namespace) -> int:
    from torch_xla_ext.tools import doctor

    report = doctor.run(args.device)
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.text())
    return 0 if report.ok else 1


def _targets(args: argparse.Namespace) -> int:
    from torch_xla_ext.tools import doctor

    targets = doctor.targets()
    if args.json:
        print(json.dumps(targets, indent=2))
    else:
        for target in targets:
            print("{platform:<6}{api:<9}{name:<28}{function}".format(**target))
    return 0


def _new_kernel(args: argparse.Namespace) -> int:
    from torch_xla_ext.tools import new_kernel

    try:
        for path in new_kernel.write(args.name, args.folder):
            print(path)
    except (ValueError, OSError) as error:
        print(f"new-kernel: {error}", file=sys.stderr)
        return 1
    pytest = "" if importlib.util.find_spec("pytest") else "pip install pytest && "
    print(f"next: {pytest}make -C {args.folder} test")
    return 0


def _profile(args: argparse.Namespace) -> int:
    import runpy

    from torch_xla_ext.tools import profiling

    sys.argv = [str(args.script), *args.arguments]
    sys.path.insert(0, str(args.script.resolve().parent))
    try:
        measured = profiling.profile()
        with measured:
            runpy.run_path(str(args.script), run_name="__main__")
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != "jax":
            raise
        print(f"profile: {error}", file=sys.stderr)
        return 1
    print(measured.table())
    if args.save:
        measured.save(args.save)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser; each command sets its function as `run`."""
    result = argparse.ArgumentParser(prog="python -m torch_xla_ext", description=__doc__)
    commands = result.add_subparsers(metavar="COMMAND", required=True)

    doctor = commands.add_parser(
        "doctor", help="report what is installed and what is missing, and test every device"
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.add_argument(
        "--device",
        choices=["CPU", "CUDA"],
        help="device to check (default: PJRT_DEVICE, or CUDA if a plugin or driver is found)",
    )
    doctor.set_defaults(run=_doctor)

    targets = commands.add_parser("targets", help="list the registered custom-call targets")
    targets.add_argument("--json", action="store_true", help="print the list as JSON")
    targets.set_defaults(run=_targets)

    new_kernel = commands.add_parser(
        "new-kernel", help="create a project with a new kernel, its operator and tests"
    )
    new_kernel.add_argument("name", metavar="NAME", help="name in snake case, such as my_op")
    new_kernel.add_argument("folder", metavar="DIR", type=Path, help="folder to create it in")
    new_kernel.set_defaults(run=_new_kernel)

    profile = commands.add_parser(
        "profile", help="run a script and print what ran on the device and on the host"
    )
    profile.add_argument(
        "--save", metavar="FILE", type=Path, help="write a Perfetto trace, .json.gz"
    )
    profile.add_argument("script", metavar="SCRIPT", type=Path, help="Python file to run")
    profile.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments for the script"
    )
    profile.set_defaults(run=_profile)
    return result


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
