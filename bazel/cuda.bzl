"""cuda_library: compiles CUDA sources with the pinned nvcc, never with the machine's."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain", "use_cpp_toolchain")
load(":configurations.bzl", "shared_not_rebuilt")

# The architectures for which nvcc 13.0 generates code. A suffix selects features of one chip (a) or
# family (f) only.
_KNOWN_ARCHS = (
    "75 80 86 87 88 89 90 90a 100 100a 100f 103 103a 103f 110 110a 110f 120 120a 120f 121 121a 121f"
).split(" ")

# The GPUs that kernels are compiled for: A100 (80), H100 and H200 (90), B200 (100), RTX 50 (120).
# One is also kept as PTX, which the driver compiles for GPUs that come later.
DEFAULT_ARCHS = ["80", "90", "100", "120"]

CudaArchsInfo = provider(
    doc = "The architectures that CUDA code is compiled for.",
    fields = {"archs": "list of strings such as 90 or 90a, in the order of the flag"},
)

def _check_archs(archs, where):
    for arch in archs:
        if arch not in _KNOWN_ARCHS:
            fail("%s: `%s` is no architecture that nvcc 13.0 knows; write numbers such as " % (
                where,
                arch,
            ) + "90 or 120, of: " + ", ".join(_KNOWN_ARCHS))

def _cuda_archs_impl(ctx):
    flag = "--//%s:%s" % (ctx.label.package, ctx.label.name)
    archs = [arch.strip() for arch in ctx.build_setting_value]
    if not archs:
        fail(flag + ": at least one architecture is needed, such as 90")
    _check_archs(archs, flag)
    return CudaArchsInfo(archs = archs)

cuda_archs = rule(
    implementation = _cuda_archs_impl,
    doc = "The flag by which a person chooses architectures: `--//bazel/cuda:archs=90,120`.",
    build_setting = config.string_list(flag = True),
)

# GPUs of this compute capability and later ones share PTX, which compiles faster than PTX for each.
_SHARES_PTX = 100

def _gencode(archs):
    """Returns nvcc's flags: machine code for each arch, and PTX of the newest one for later GPUs."""
    flags = []
    shared = sorted([int(arch) for arch in archs if arch.isdigit() and int(arch) >= _SHARES_PTX])
    own = [arch for arch in archs if not arch.isdigit() or int(arch) < _SHARES_PTX]
    generic = sorted([int(arch) for arch in own if arch.isdigit()])
    for arch in own:
        code = "sm_" + arch
        if not shared and generic and arch == str(generic[-1]):
            code = "[%s,compute_%s]" % (code, arch)
        flags.append("-gencode=arch=compute_%s,code=%s" % (arch, code))
    if shared:
        codes = ["sm_%s" % arch for arch in shared] + ["compute_%s" % shared[0]]
        flags.append("-gencode=arch=compute_%s,code=[%s]" % (shared[0], ",".join(codes)))
    return flags

def _compile(ctx, source, toolchain, archs, compilation_context):
    """Declares the action that compiles one .cu file and returns its object."""
    object = ctx.actions.declare_file("_cuda/%s/%s.o" % (ctx.label.name, source.basename))
    args = ctx.actions.args()
    args.add_all(["-c", source, "-o", object])
    args.add("-ccbin", toolchain.compiler_executable)
    args.add_all(["-std=c++17", "-O3", "-DNDEBUG"])
    args.add("-Xcompiler=-fPIC,-fvisibility=hidden")

    # Without these flags, names of static kernels contain a hash of the source's absolute path, and
    # names of temporary files contain the process id: no two builds would produce the same object.
    args.add_all(["-Xcudafe", "--orig_src_path_name=" + source.short_path, "-objtemp"])
    args.add_all(_gencode(archs))
    args.add_all(ctx.attr.copts)
    args.add_all(compilation_context.defines, before_each = "-D")
    args.add_all(compilation_context.local_defines, before_each = "-D")
    args.add_all(compilation_context.quote_includes, before_each = "-I")
    args.add_all(compilation_context.includes, before_each = "-I")
    args.add_all(compilation_context.system_includes, before_each = "-isystem")
    ctx.actions.run(
        executable = ctx.executable._nvcc,
        arguments = [args],
        inputs = depset(
            [source],
            transitive = [
                ctx.attr._compiler.files,
                compilation_context.headers,
                toolchain.all_files,
            ],
        ),
        outputs = [object],
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s for sm_%s" % (source.short_path, ", sm_".join(archs)),
        use_default_shell_env = True,
    )
    return object

def _cuda_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    _check_archs(ctx.attr.extra_archs, str(ctx.label))
    _check_archs(ctx.attr.archs, str(ctx.label))
    archs = ctx.attr.archs or ctx.attr._archs[CudaArchsInfo].archs
    archs = archs + [arch for arch in ctx.attr.extra_archs if arch not in archs]

    deps = [dep[CcInfo] for dep in ctx.attr.deps + ctx.attr._cudart]
    headers = cc_common.create_compilation_context(
        headers = depset(ctx.files.hdrs),
        quote_includes = depset([
            ctx.label.workspace_root or ".",
            ctx.bin_dir.path + ("/" + ctx.label.workspace_root if ctx.label.workspace_root else ""),
        ]),
    )
    compilation_context = cc_common.merge_compilation_contexts(
        compilation_contexts = [headers] + [dep.compilation_context for dep in deps],
    )
    objects = depset([
        _compile(ctx, source, toolchain, archs, compilation_context)
        for source in ctx.files.srcs
    ])
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        cc_toolchain = toolchain,
        feature_configuration = features,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = objects,
            pic_objects = objects,
        ),
        linking_contexts = [dep.linking_context for dep in deps],
        alwayslink = True,
        disallow_dynamic_library = True,
    )
    return [
        DefaultInfo(files = objects),
        CcInfo(compilation_context = compilation_context, linking_context = linking_context),
    ]

cuda_library = rule(
    implementation = _cuda_library_impl,
    doc = """Compiles CUDA sources; a cc_library or cc_binary can depend on it.

All objects are linked (alwayslink), so that static registrations take effect. The CUDA runtime
is linked statically.
""",
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], doc = "CUDA sources."),
        "hdrs": attr.label_list(
            allow_files = [".h", ".cuh"],
            doc = "Headers of this library, included by their path from the workspace's root.",
        ),
        "deps": attr.label_list(providers = [CcInfo], doc = "C++ or CUDA libraries."),
        "copts": attr.string_list(doc = "More options for nvcc."),
        "extra_archs": attr.string_list(
            doc = "Architectures for this library besides those of --//bazel/cuda:archs, such " +
                  "as 90a for code that uses features of that chip alone.",
        ),
        "archs": attr.string_list(
            doc = "Architectures in place of those of --//bazel/cuda:archs, for code that only " +
                  "they run.",
        ),
        "_archs": attr.label(default = "//bazel/cuda:archs", providers = [CudaArchsInfo]),
        "_compiler": attr.label(default = "@cuda//:compiler"),
        # One library for the kernels of all configurations; otherwise it would be linked twice.
        "_cudart": attr.label(
            cfg = shared_not_rebuilt,
            default = "@cuda//:cudart_static",
            providers = [CcInfo],
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
        "_nvcc": attr.label(
            default = "@cuda//:nvidia/cu13/bin/nvcc",
            allow_single_file = True,
            executable = True,
            cfg = "exec",
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = use_cpp_toolchain(),
)
