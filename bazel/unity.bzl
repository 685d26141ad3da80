"""unity_library: C++ files that are compiled as one, so that their headers are read once."""

def _include_path(file):
    """The path from the root of the file's repository, which is an include folder of its targets.

    A file of another repository has a short path that begins with ../. In a build of upstream, this
    project is such a repository, and a link to a checkout, from which ../ leads elsewhere.
    """
    path = file.short_path
    return path.split("/", 2)[2] if path.startswith("../") else path

def _unity_source_impl(ctx):
    source = ctx.actions.declare_file(ctx.label.name + ".cc")
    includes = ["#include \"%s\"\n" % _include_path(src) for src in ctx.files.srcs]
    ctx.actions.write(source, "// Made by bazel/unity.bzl.\n" + "".join(includes))
    return [DefaultInfo(files = depset([source]))]

_unity_source = rule(
    implementation = _unity_source_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"], mandatory = True)},
)

def unity_library(name, srcs, **kwargs):
    """A cc_library whose sources are compiled as one file.

    PyTorch's headers take the compiler six seconds, more than most of the files that include them.

    The names in the files' unnamed namespaces must differ, and so must their macros.

    Args:
      name: the library.
      srcs: the .cc files, or filegroups of them, in the order in which they are compiled.
      **kwargs: hdrs, deps and the like, as of a cc_library.
    """
    _unity_source(
        name = name + "_unity",
        srcs = srcs,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name + "_sources",
        textual_hdrs = srcs,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_unity"],
        implementation_deps = [name + "_sources"],
        **kwargs
    )
