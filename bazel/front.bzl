"""front_library: a shared library that interposes on the upstream torch_xla binary."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain", "use_cpp_toolchain")
load(":python_env.bzl", "PythonEnvInfo")

# The libraries that the front calls: the upstream binary itself, and torch's, which the user's
# process has loaded before `import _XLAC` reaches the front.
_UPSTREAM = "@torch_xla//:binary"
_TORCH = "@torch//:libraries"

FrontLibraryInfo = provider(
    doc = "A library that stands in front of the upstream binary, and needs it beside itself.",
    fields = {"upstream_binary": "where the wheel has the upstream binary (string)"},
)

def _checked_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    env = ctx.attr._python[PythonEnvInfo]
    library = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = library, target_file = ctx.file.library)
    checked = ctx.actions.declare_file(ctx.label.name + ".checked")
    args = ctx.actions.args()
    args.add_all(["-B", ctx.file._check])
    args.add("--nm", toolchain.nm_executable)
    args.add("--stamp", checked)
    args.add(ctx.file.library)
    args.add_all(ctx.files.defined_by)
    ctx.actions.run(
        executable = env.interpreter,
        arguments = [args],
        inputs = depset(
            [ctx.file._check, ctx.file.library, env.stamp] + ctx.files.defined_by,
            transitive = [toolchain.all_files],
        ),
        outputs = [checked],
        mnemonic = "CheckSymbols",
        progress_message = "Checking that all symbols of %{label} are defined",
    )
    abi_checked = ctx.actions.declare_file(ctx.label.name + ".abi_checked")
    abi = [ctx.file.library, ctx.file._upstream, ctx.file._layout, ctx.file._machine_code]
    ctx.actions.run(
        executable = env.interpreter,
        arguments = ["-B", ctx.file._check_abi.path] + [f.path for f in abi + [abi_checked]],
        inputs = abi + [ctx.file._check_abi, env.stamp],
        outputs = [abi_checked],
        mnemonic = "CheckAbi",
        progress_message = "Checking that csrc/interpose/abi is that of the upstream binary",
    )
    return [
        DefaultInfo(files = depset([library])),
        FrontLibraryInfo(upstream_binary = ctx.attr.upstream_binary),
        # Bazel runs these checks whenever it builds something that uses the library.
        OutputGroupInfo(_validation = depset([checked, abi_checked])),
    ]

_checked_library = rule(
    implementation = _checked_library_impl,
    doc = "A shared library all of whose symbols are known to be defined.",
    attrs = {
        "defined_by": attr.label_list(
            allow_files = True,
            doc = "The libraries that may define them, besides Python and the C and C++ runtimes.",
        ),
        "library": attr.label(allow_single_file = True, mandatory = True),
        "upstream_binary": attr.string(mandatory = True, doc = "As FrontLibraryInfo."),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_check": attr.label(
            allow_single_file = True,
            default = "//bazel/wheel:check_symbols.py",
        ),
        "_check_abi": attr.label(
            allow_single_file = True,
            default = "//bazel/wheel:check_abi.py",
        ),
        "_layout": attr.label(
            allow_single_file = True,
            default = "//torch_xla_ext/csrc/interpose/abi:layout.h",
        ),
        "_machine_code": attr.label(
            allow_single_file = True,
            default = "//torch_xla_ext/csrc/interpose/abi:machine_code.txt",
        ),
        "_upstream": attr.label(allow_single_file = True, default = _UPSTREAM),
        "_python": attr.label(default = "@python//:python", providers = [PythonEnvInfo]),
    },
    fragments = ["cpp"],
    toolchains = use_cpp_toolchain(),
)

def front_library(name, deps, version_script, soname, upstream_folder, **kwargs):
    """Links the front so that the dynamic loader finds the upstream binary right after it.

    The shared libraries are named on the command line and not in `deps`, because Bazel would then
    add RUNPATHs into its own output tree. The build fails if none of them defines a symbol, which
    reveals a change in the upstream binary's functions. The linker's own `-z defs` cannot check this,
    because Python's symbols are defined only by the interpreter that imports the front.

    Args:
      name: the shared library's file name.
      deps: C++ and CUDA libraries; those with registrations have alwayslink.
      version_script: the linker script that says which symbols are exported.
      soname: its own name, so that the loader does not mistake it for the upstream binary.
      upstream_folder: the upstream binary's folder in the wheel, relative to the front.
      **kwargs: visibility and the like.
    """
    native.cc_binary(
        name = "unchecked_" + name,
        additional_linker_inputs = [
            version_script,
            _UPSTREAM,
            _TORCH,
        ],
        linkopts = [
            "$(execpath %s)" % _UPSTREAM,
            "$(execpaths %s)" % _TORCH,
            "-Wl,-soname," + soname,
            "-Wl,-rpath,'$$ORIGIN/%s'" % upstream_folder,
            "-Wl,--enable-new-dtags",
            "-Wl,--version-script=$(execpath %s)" % version_script,
        ],
        linkshared = True,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    _checked_library(
        name = name,
        defined_by = [
            _UPSTREAM,
            _TORCH,
        ],
        library = "unchecked_" + name,
        upstream_binary = upstream_folder + "/_XLAC.so",
        **kwargs
    )
