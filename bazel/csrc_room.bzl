"""csrc_room: the targets of a folder of csrc that uses torch_xla."""

load(":unity.bzl", "unity_library")

def csrc_room(name, uses = [], libraries = [], exclude = []):
    """The library `name`, and `sources` and `headers` of the folder.

    A build of upstream compiles `sources` as a part of its library `tensor`, with `headers`
    (//torch_xla_ext/csrc:sources).

    Args:
      name: the folder's name.
      uses: the other csrc_rooms that this one may include (torch_xla_ext/layers.toml).
      libraries: the libraries that it needs and that do not use torch_xla.
      exclude: files that belong to other targets of the folder, without their extensions.
    """
    native.filegroup(
        name = "sources",
        srcs = native.glob(
            ["*.cc"],
            exclude = [file + ".cc" for file in exclude],
        ),
        visibility = ["//visibility:public"],
    )
    unity_library(
        name = name,
        srcs = [":sources"],
        visibility = ["//visibility:public"],
        deps = [":headers"] + ["//torch_xla_ext/csrc/" + used for used in uses],
    )
    native.cc_library(
        name = "headers",
        hdrs = native.glob(
            ["*.h"],
            exclude = [file + ".h" for file in exclude],
        ),
        visibility = ["//visibility:public"],
        deps = ["//torch_xla_ext/csrc/%s:headers" % used for used in uses] + libraries + [
            "//torch_xla_ext/csrc:upstream",
            "@torch//:headers",
        ],
    )
