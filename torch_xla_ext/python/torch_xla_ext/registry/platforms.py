"""Names of the targets' platforms and APIs in XLA, torch_xla and PyTorch."""

from typing import NamedTuple


class Platform(NamedTuple):
    """The names of an XLA platform.

    Attributes:
        device_type: torch_xla's name, as in PJRT_DEVICE; also the dispatch key of PyTorch's own
            tensors.
        text: the name in error messages.
    """

    device_type: str
    text: str


class Api(NamedTuple):
    """An API of custom calls, with XLA's numbers for it.

    Attributes:
        call_version: the xla::CustomCallApiVersion of a call.
        registered_version: the API version with which XLA registers functions.
    """

    call_version: int
    registered_version: int


PLATFORMS = {"CUDA": Platform("CUDA", "CUDA"), "Host": Platform("CPU", "the CPU")}
# The names in HLO of xla::CustomCallApiVersion.
CALL_VERSIONS = {
    "API_VERSION_ORIGINAL": 1,
    "API_VERSION_STATUS_RETURNING": 2,
    "API_VERSION_STATUS_RETURNING_UNIFIED": 3,
    "API_VERSION_TYPED_FFI": 4,
}
APIS = {
    "untyped": Api(CALL_VERSIONS["API_VERSION_STATUS_RETURNING_UNIFIED"], 0),
    "ffi": Api(CALL_VERSIONS["API_VERSION_TYPED_FFI"], 1),
}
_BY_DEVICE_TYPE = {platform.device_type: name for name, platform in PLATFORMS.items()}


def platform_of(device_type: str) -> str | None:
    """Return XLA's platform for a torch_xla device type; None if kernels cannot run there."""
    return _BY_DEVICE_TYPE.get(device_type)
