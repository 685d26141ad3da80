"""Return plain CPU tensors from operations on XLAShardedTensor, which mark_sharding returns.

Upstream, all results are XLAShardedTensors, also those on the CPU. PyTorch refuses numpy(),
tolist() and formatting of such tensors, and share_memory_() crashed the process.
"""

import functools
from collections.abc import Callable

import torch
from torch._C._dynamo import eval_frame
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor


def torch_dispatch(_: Callable[..., object]) -> classmethod:
    """Replace XLAShardedTensor.__torch_dispatch__."""

    def dispatch(
        cls: type[XLAShardedTensor],
        func: torch._ops.OpOverload,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        args, kwargs = pytree.tree_map_only(cls, _global_tensor, (args, kwargs or {}))
        with torch._C._DisableTorchDispatch():
            result = func(*args, **kwargs)
            return pytree.tree_map_only(torch.Tensor, _marked, result)

    # torch.compile shall compile neither this function nor what it calls. (torch.compiler.disable
    # would import Dynamo.)
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(dispatch.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return classmethod(dispatch)


def torch_function(_: Callable[..., object]) -> Callable[..., object]:
    """Replace XLAShardedTensor.__torch_function__, which makes results XLAShardedTensors, too."""
    return torch._C._disabled_torch_function_impl


def method(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a method of torch.Tensor that refuses subclasses."""

    @functools.wraps(original)
    def call(self: XLAShardedTensor, *args: object) -> object:
        return original(self.global_tensor, *args)

    return call


def reduce_ex(_: Callable[..., object]) -> Callable[..., object]:
    """Pickle the tensor that is wrapped: torch.load(weights_only=True) refuses other classes.

    Upstream, a file has the values twice; what is loaded has no sharding there, either.
    """

    def reduce_ex(self: XLAShardedTensor, protocol: int) -> tuple:
        plain = self.global_tensor.detach().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            plain = torch.nn.Parameter(plain, self.requires_grad)
        return plain.__reduce_ex__(protocol)

    return reduce_ex


def missing_attribute(_: None) -> Callable[..., object]:
    """Make an attribute that a DeviceMesh of XLA devices lacks an error that says what there is."""

    def missing_attribute(self: DeviceMesh, name: str) -> object:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if self.__dict__.get("device_type") == "xla":
            text += (
                ": of DTensor's functions, torch_xla has distribute_tensor and distribute_module; "
                "xs.mark_sharding divides intermediate results"
            )
        raise AttributeError(text, name=name, obj=self)

    return missing_attribute


def _marked(result: torch.Tensor) -> torch.Tensor:
    return XLAShardedTensor(result) if result.device.type == "xla" else result


def _global_tensor(tensor: XLAShardedTensor) -> torch.Tensor:
    return tensor.global_tensor
