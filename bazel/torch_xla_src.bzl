"""@torch_xla_src: the source of the torch_xla release with this project's patches."""

_RELEASE = "2.8.1"

# The digest of `git archive --format=tar --prefix=xla-2.8.1/ v2.8.1 | gzip -cn`, which is how
# GitHub makes the archive of a tag; no digest of it is published. For nlohmann/json 3.11.2, the
# same commands give the digest in pytorch/xla's WORKSPACE. If GitHub changes its archives, the
# build stops here; the tag's commit in patches/torch_xla-2.8.1/series still identifies the source.
_SHA256 = "c3ac3900ad3ad7f66acf5be5f117133566093d8b5d1fb08dbcc9e1ddef6e04c0"

def _patched_source_impl(ctx):
    series = ctx.path(ctx.attr.series)
    tree = "torch_xla-" + _RELEASE
    ctx.download_and_extract(
        output = tree,
        sha256 = _SHA256,
        stripPrefix = "xla-" + _RELEASE,
        url = "https://github.com/pytorch/xla/archive/refs/tags/v%s.tar.gz" % _RELEASE,
    )
    for line in ctx.read(series).splitlines():
        if line and not line.startswith("#"):
            patch = series.dirname.get_child(line)
            ctx.watch(patch)
            result = ctx.execute(
                ["git", "apply", "--directory=" + tree, patch],
                # The output folder may be inside a git work tree, which git must not find.
                environment = {"GIT_CEILING_DIRECTORIES": str(ctx.path(".").dirname)},
            )
            if result.return_code:
                fail("%s does not apply: %s" % (line, result.stderr))

    # The same bytes on every machine.
    result = ctx.execute([
        "tar",
        "--create",
        "--file=%s-patched.tar" % tree,
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=go-w",
        tree,
    ])
    if result.return_code:
        fail("tar: " + result.stderr)

    # Its BUILD files do not work in this workspace.
    ctx.delete(tree)
    ctx.file("BUILD", 'exports_files(["%s-patched.tar"])\n' % tree)

_patched_source = repository_rule(
    implementation = _patched_source_impl,
    attrs = {"series": attr.label(mandatory = True)},
)

def torch_xla_src_repository():
    """Declares @torch_xla_src, which is fetched only for a target that needs it.

    It has a single file, a tar of the patched tree.
    """
    _patched_source(
        name = "torch_xla_src",
        series = Label("//patches:torch_xla-%s/series" % _RELEASE),
    )
