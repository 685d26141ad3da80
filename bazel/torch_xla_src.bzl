"""@torch_xla_src: the source of torch_xla's release with the patches of this project."""

load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")

_RELEASE = "2.8.1"

# That of `git archive --format=tar --prefix=xla-2.8.1/ v2.8.1 | gzip -cn`, which is how GitHub
# makes the archive of a tag; nobody publishes a digest of it. The same commands give the digest
# that pytorch/xla's WORKSPACE has for the archive of nlohmann/json 3.11.2. Should GitHub change
# them, the build stops here, and the tag's commit in patches/torch_xla-2.8.1/series still says
# what the source is.
_SHA256 = "c3ac3900ad3ad7f66acf5be5f117133566093d8b5d1fb08dbcc9e1ddef6e04c0"

# As in the series file there: a test compares them.
_PATCHES = [
    "0001-Let-GPU-custom-calls-name-their-target.patch",
    "0002-Make-the-layouts-of-GPU-custom-calls-row-major.patch",
    "0003-Hash-everything-that-CustomCall-lowers.patch",
    "0004-Register-custom-call-targets-for-the-host-and-typed-.patch",
    "0005-Forward-statically-registered-CUDA-targets-to-the-PJ.patch",
    "0006-Throw-from-XLA_CHECK_OK-instead-of-aborting.patch",
    "0007-Let-a-build-link-custom-kernels-into-_XLAC.so.patch",
    "0008-Name-the-argument-in-the-errors-of-custom-calls.patch",
    "0009-Declare-c10-cuda-set_device-as-torch-2.8-defines-it.patch",
    "0010-Convert-GPU-custom-call-operands-to-their-dtypes.patch",
    "0011-Refuse-operands-of-dynamic-shapes-in-GPU-custom-call.patch",
    "0012-Let-GPU-custom-calls-write-to-their-inputs.patch",
]

_TAR = "torch_xla-%s-patched.tar" % _RELEASE

def torch_xla_src_repository():
    """Declares @torch_xla_src, which is fetched only for a target that needs it.

    It has one file, a tar of the patched tree: its BUILD files are not for this workspace.
    """
    http_archive(
        name = "torch_xla_src",
        build_file_content = 'exports_files(["%s"])\n' % _TAR,
        patch_args = ["-p1"],
        # The same bytes on every machine; links stay as they are (SH). BUILD.bazel is the line above.
        patch_cmds = [" ".join([
            "tar --create --file=../torch_xla_src.tar --exclude=./BUILD.bazel --sort=name",
            "--mtime=@0 --owner=0 --group=0 --numeric-owner --mode=go-w",
            "--transform='s,^[.],torch_xla-%s,SH' . &&" % _RELEASE,
            "mv ../torch_xla_src.tar " + _TAR,
        ])],
        patches = [
            Label("//patches:torch_xla-%s/%s" % (_RELEASE, patch))
            for patch in _PATCHES
        ],
        sha256 = _SHA256,
        strip_prefix = "xla-" + _RELEASE,
        urls = ["https://github.com/pytorch/xla/archive/refs/tags/v%s.tar.gz" % _RELEASE],
    )
