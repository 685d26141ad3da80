"""Helpers for rules that build a folder under another configuration."""

def link_folder(ctx, target):
    """Links the output of `target` to a folder with the name of the rule's target.

    In a test's runfiles, the output itself would have the name of its own target.

    Args:
      ctx: the rule's context.
      target: an attribute with one target, under a transition.

    Returns:
      The rule's providers.
    """
    output = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.symlink(
        output = output,
        target_file = target[0][DefaultInfo].files.to_list()[0],
    )
    return [DefaultInfo(files = depset([output]))]
