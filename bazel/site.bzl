"""site: makes static HTML from Markdown pages with MkDocs."""

load(":python_env.bzl", "PythonEnvInfo")

def _site_impl(ctx):
    env = ctx.attr._mkdocs[PythonEnvInfo]
    output = ctx.actions.declare_directory(ctx.label.name)
    args = ctx.actions.args()
    args.add("-B")
    args.add(ctx.file._make_site)
    args.add("--config", ctx.file.config)
    args.add("--output", output.path)
    args.add_all(ctx.files.srcs)
    ctx.actions.run(
        executable = env.interpreter,
        arguments = [args],
        inputs = ctx.files.srcs + [ctx.file.config, ctx.file._make_site, env.stamp],
        outputs = [output],
        mnemonic = "Site",
        progress_message = "Making the site %{label}",
    )
    return [DefaultInfo(files = depset([output]))]

site = rule(
    implementation = _site_impl,
    doc = "The folder with the site. A link to a page or file that is not there is an error.",
    attrs = {
        "config": attr.label(allow_single_file = True, mandatory = True, doc = "mkdocs.yml."),
        "srcs": attr.label_list(
            allow_files = True,
            mandatory = True,
            doc = "Pages, and the files that they link to. The site has their paths.",
        ),
        "_make_site": attr.label(allow_single_file = True, default = "//bazel/site:make_site.py"),
        "_mkdocs": attr.label(default = "@docs_tools//:python", providers = [PythonEnvInfo]),
    },
)
