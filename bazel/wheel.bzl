"""Rules that assemble this project's wheel from the upstream one, and install it for tests."""

load("@python//:python.bzl", "PYTHON")
load(":cuda.bzl", "CudaArchsInfo", "DEFAULT_ARCHS")
load(":front.bzl", "FrontLibraryInfo")
load(":python_env.bzl", "PythonEnvInfo")

WheelInfo = provider(
    doc = "A built wheel.",
    fields = {
        "folder": "File: a folder that has the wheel, under its true name, and nothing else",
        "sources": "{path in the wheel: File} of our own Python files and headers",
    },
)

# For large outputs that are faster to rebuild than to store in a cache.
_UNCACHED = {"no-cache": "1"}

def _files_by_path(files, strip_prefixes):
    """Returns {path in the wheel: File}.

    The path in the wheel is the path in the repository, without its prefix in `strip_prefixes`.
    """
    result = {}
    for file in files:
        root = file.owner.workspace_root
        prefix = root.replace("external/", "../", 1) + "/" if root else ""
        path = file.short_path.removeprefix(prefix)
        for strip_prefix in strip_prefixes:
            path = path.removeprefix(strip_prefix + "/")
        result[path] = file
    return result

def _labels_by_path(labels):
    """Turns {label: path in the wheel} into {path in the wheel: path on disk}."""
    result = {}
    for label, path in labels.items():
        files = label[DefaultInfo].files.to_list()
        if len(files) != 1:
            fail("%s is %d files, expected one" % (label.label, len(files)))
        result[path.format(**PYTHON)] = files[0].path
    return result

def _check_upstream_binary(ctx, extension):
    """Returns the stamp of the check that csrc/interpose/abi matches this upstream binary."""
    env = ctx.attr._build_tools[PythonEnvInfo]
    checked = ctx.actions.declare_file(ctx.label.name + "_upstream_binary_checked")
    ctx.actions.run(
        executable = env.interpreter,
        arguments = [
            "-B",
            ctx.file._check_upstream_binary.path,
            ctx.file.upstream_binary.path,
            extension,
            ctx.file.upstream_digests.path,
            checked.path,
        ],
        inputs = [ctx.file._check_upstream_binary, ctx.file.upstream_binary, ctx.file.upstream_digests],
        outputs = [checked],
        mnemonic = "CheckUpstreamBinary",
        progress_message = "Checking that csrc/interpose/abi is for this upstream binary",
    )
    return checked

def _torch_xla_wheel_impl(ctx):
    env = ctx.attr._build_tools[PythonEnvInfo]
    archs = ctx.attr._archs[CudaArchsInfo].archs
    moved = {}
    checks = []
    if FrontLibraryInfo in ctx.attr.extension:
        extension = "_XLAC" + PYTHON["ext_suffix"]
        extensions = {extension: ctx.files.extension[0].path}
        moved = {extension: ctx.attr.extension[FrontLibraryInfo].upstream_binary}
        checks = [_check_upstream_binary(ctx, extension)]
    else:
        extensions = {
            file.basename.removesuffix(".so") + PYTHON["ext_suffix"]: file.path
            for file in ctx.files.extension
        }
        if "_XLAC" + PYTHON["ext_suffix"] not in extensions:
            fail("%s has no _XLAC.so" % ctx.attr.extension.label)

    # The platform tag, a part of the file's name, depends on the linked libraries, so it is not
    # known before the action has run. The declared output is therefore the folder with the wheel.
    folder = ctx.actions.declare_directory(ctx.label.name)
    binaries = _labels_by_path(ctx.attr.binaries)
    binaries |= extensions
    sources = _files_by_path(ctx.files.srcs, ctx.attr.strip_prefixes)
    spec = ctx.actions.declare_file(ctx.label.name + "_spec.json")
    ctx.actions.write(spec, json.encode_indent({
        "upstream_wheel": ctx.file.upstream_wheel.path,
        "out_dir": folder.path,
        "local_version": ctx.attr.local_version,
        "archs": [] if archs == DEFAULT_ARCHS else archs,
        "summary": ctx.attr.summary,
        "description": ctx.file.description.path,
        "moved": moved,
        "replaced": sorted([name for name in extensions if name not in moved]),
        "files": {path: file.path for path, file in sources.items()} |
                 _labels_by_path(ctx.attr.data),
        "binaries": binaries,
        "licenses": _labels_by_path(ctx.attr.licenses),
        "entry_points": ctx.attr.entry_points,
        "extras": ctx.attr.extras,
    }))
    ctx.actions.run(
        executable = env.interpreter,
        arguments = ["-B", ctx.files._assemble[0].dirname + "/assemble.py", spec.path],
        inputs = depset(
            [
                ctx.file.description,
                ctx.file.upstream_wheel,
                env.stamp,
                spec,
            ] + checks + ctx.files.extension + ctx.files._assemble + ctx.files.binaries + ctx.files.data + ctx.files.licenses + ctx.files.srcs,
        ),
        outputs = [folder],
        mnemonic = "AssembleWheel",
        progress_message = "Assembling the wheel",
        execution_requirements = _UNCACHED,
    )
    return [DefaultInfo(files = depset([folder])), WheelInfo(folder = folder, sources = sources)]

torch_xla_wheel = rule(
    implementation = _torch_xla_wheel_impl,
    doc = "Our torch_xla wheel, in the folder bazel-bin/NAME: the upstream one with our extension.",
    attrs = {
        "binaries": attr.label_keyed_string_dict(
            doc = "More shared libraries of ours, each with its path in the wheel. `{ext_suffix}` " +
                  "in a path is the suffix of extension modules.",
        ),
        "data": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "More files, each with its path in the wheel.",
        ),
        "description": attr.label(
            allow_single_file = [".md"],
            mandatory = True,
            doc = "The long description in METADATA.",
        ),
        "entry_points": attr.string_list_dict(
            doc = "Entry points besides the upstream wheel's: {group: [\"name = module:object\"]}.",
        ),
        "extension": attr.label(
            allow_files = [".so"],
            mandatory = True,
            doc = "What becomes the extension module _XLAC: a front_library, which stands before " +
                  "the upstream one, or libraries of a torch_xla that was built from source, which " +
                  "take the place of those of their name: _XLAC.so, _XLAC_cuda_functions.so.",
        ),
        "extras": attr.string_list_dict(
            doc = "Extras besides the upstream wheel's: {extra: [requirements]}.",
        ),
        "licenses": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "License files, each with its path under .dist-info/licenses.",
        ),
        "local_version": attr.string(
            mandatory = True,
            doc = "What follows the `+` in our version. After it come the GPU architectures, if " +
                  "they are not the usual ones, and digits of the content.",
        ),
        "srcs": attr.label_list(
            allow_files = True,
            doc = "Python files and data; each has in the wheel the path that it has here, without " +
                  "its folder of `strip_prefixes`.",
        ),
        "upstream_binary": attr.label(
            allow_single_file = True,
            default = "@torch_xla//:binary",
            doc = "The upstream extension module, of which only the digest is looked at.",
        ),
        "upstream_digests": attr.label(
            allow_single_file = True,
            mandatory = True,
            doc = "The digests of the upstream extension modules that csrc/interpose/abi was written for.",
        ),
        "upstream_wheel": attr.label(
            allow_single_file = [".whl"],
            default = "@torch_xla//:wheel",
            doc = "The upstream wheel.",
        ),
        "strip_prefixes": attr.string_list(
            doc = "The folders of the Python packages: the wheel has what is in them at its root.",
        ),
        "summary": attr.string(mandatory = True, doc = "The summary in METADATA."),
        "_archs": attr.label(default = "//bazel/cuda:archs", providers = [CudaArchsInfo]),
        "_assemble": attr.label_list(
            allow_files = True,
            default = [
                "//bazel/wheel:assemble.py",
                "//bazel/wheel:metadata.py",
                "//bazel/wheel:platform_tag.py",
                "//bazel/wheel:raw_zip.py",
            ],
        ),
        "_build_tools": attr.label(
            default = "@build_tools//:python",
            providers = [PythonEnvInfo],
        ),
        "_check_upstream_binary": attr.label(
            allow_single_file = True,
            default = "//bazel/wheel:check_upstream_binary.py",
        ),
    },
)

def _installed_wheel_impl(ctx):
    env = ctx.attr._test_env[PythonEnvInfo]
    wheel = ctx.attr.wheel[WheelInfo].folder
    folder = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.run(
        executable = env.interpreter,
        arguments = ["-B", ctx.file._install.path, wheel.path, folder.path],
        inputs = [ctx.file._install, env.stamp, wheel],
        outputs = [folder],
        mnemonic = "InstallWheel",
        progress_message = "Installing the wheel for tests",
        execution_requirements = _UNCACHED,
    )
    return [DefaultInfo(files = depset([folder]))]

installed_wheel = rule(
    implementation = _installed_wheel_impl,
    doc = "A folder that the wheel is installed in, to be put on PYTHONPATH.",
    attrs = {
        "wheel": attr.label(mandatory = True, providers = [WheelInfo]),
        "_install": attr.label(allow_single_file = True, default = "//bazel/wheel:install.py"),
        "_test_env": attr.label(default = "@test_env//:python", providers = [PythonEnvInfo]),
    },
)
