"""The former place of wheel_with_kernels, which is in configurations.bzl. It works for one release.
"""

load(":configurations.bzl", _wheel_with_kernels = "wheel_with_kernels")

wheel_with_kernels = _wheel_with_kernels
