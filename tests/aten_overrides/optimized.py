"""Import it before the first computation: XLA then compiles as for a user.

For tests of numbers that depend on how a program is compiled. bazel/pytest.bzl has the other tests'
quick compilation.
"""

import os

os.environ["XLA_FLAGS"] = ""
