"""List the replaced functions of PyTorch; table.py says how a row is made."""

from torch_xla_ext_startup.upstream_fixes.row import fix
from torch_xla_ext_startup.upstream_fixes.row import torch_fix as _torch

_BACKEND = "torch._dynamo.backends.torchxla"

FIXES = (
    _torch(
        "xla_gpu_operators",
        reason="torch.ops.xla_gpu lacks our operators until torch_xla_ext is imported",
        test="tests/wheel/import_test.py",
        replaces={"torch:ops.xla_gpu": "operator_namespace:xla_gpu"},
        adds=True,
    ),
    _torch(
        "quantized_operators",
        reason="torch.ops.quantized_decomposed is empty until its module is imported",
        test="tests/wheel/import_test.py",
        replaces={"torch:ops.quantized_decomposed": "operator_namespace:quantized_decomposed"},
        adds=True,
    ),
    _torch(
        "custom_operators",
        reason="writes of a custom_op's function to arguments or views are lost, or refused",
        test="tests/users/custom_operators_test.py",
        replaces={
            "torch._library.custom_ops:CustomOpDef.register_kernel": (
                "custom_operators:register_kernel"
            ),
            "torch._library.custom_ops:CustomOpDef._register_to_dispatcher": (
                "custom_operators:register_to_dispatcher"
            ),
        },
    ),
    _torch(
        "fx_tracing",
        reason="a thread cannot call a compiled function while another thread compiles one",
        test="tests/users/compiled_programs_test.py",
        replaces={
            "torch.fx._symbolic_trace:Tracer.trace": "fx_tracing:trace",
            "torch.fx._symbolic_trace:is_fx_tracing": "fx_tracing:is_fx_tracing",
        },
    ),
    _torch(
        "module_parameters",
        reason="moving a module replaces its parameters, so that tied weights become separate",
        test="tests/users/moved_modules_test.py",
        replaces={"torch.nn.modules.module:Module._apply": "module_parameters:apply"},
    ),
    _torch(
        "loading",
        reason='torch.load(map_location="xla") fails, since XLA tensors have no storage',
        test="tests/graph/optimizers_test.py",
        replaces={"torch._utils:_rebuild_tensor": "loading:rebuild_tensor"},
    ),
    _torch(
        "script_modules",
        reason="torch.jit.save of XLA tensors fails, and so does torch.jit.load to XLA",
        test="tests/users/moved_modules_test.py",
        replaces={
            "torch.jit:load": "loading:load_script",
            **{
                f"torch.jit._script:{module}.{method}": "loading:save_script"
                for module in ("ScriptModule", "RecursiveScriptModule")
                for method in ("save", "save_to_buffer")
            },
        },
    ),
    _torch(
        "pickled_leaves",
        reason="a pickled XLA tensor that requires a gradient cannot be loaded",
        test="tests/graph/optimizers_test.py",
        replaces={
            "torch._utils:_rebuild_device_tensor_from_cpu_tensor": "loading:rebuild_device_tensor"
        },
    ),
    _torch(
        "random_seed",
        reason="torch.manual_seed sets the seeds of all devices except XLA's",
        test="tests/users/random_seed_test.py",
        replaces={"torch.random:_seed_custom_device": "random_seed:seed_custom_device"},
    ),
    _torch(
        "fork_rng",
        reason="torch.random.fork_rng refuses XLA devices, and loses their state by default",
        test="tests/users/random_seed_test.py",
        replaces={"torch.random:fork_rng": "random_seed:fork_rng"},
    ),
    _torch(
        "generators",
        reason='torch.Generator(device="xla") is refused: XLA is not a known accelerator',
        test="tests/users/random_seed_test.py",
        replaces={"torch:Generator": "generators:generator"},
    ),
    _torch(
        "functionalize",
        reason="torch.func.functionalize fails an assertion for XLA tensors",
        test="tests/users/dispatch_modes_test.py",
        replaces={"torch._functorch.eager_transforms:functionalize": "functionalize:functionalize"},
        everywhere=True,
    ),
    _torch(
        "traced_data",
        reason="x.data of an XLA tensor is a constant of make_fx's graph",
        test="tests/users/dispatch_modes_test.py",
        replaces={
            "torch.fx.experimental.proxy_tensor:TorchFunctionMetadataMode.__torch_function__": (
                "traced_data:trace_data"
            )
        },
    ),
    _torch(
        "fused_optimizers",
        reason="optimizers refuse fused=True for XLA tensors",
        test="tests/users/training_loops_test.py",
        replaces={
            "torch.optim.optimizer:_get_fused_kernels_supported_devices": (
                "fused_optimizers:fused_devices"
            )
        },
    ),
    _torch(
        "capturable_optimizers",
        reason="optimizers refuse capturable=True with foreach=True for XLA tensors",
        test="tests/users/training_loops_test.py",
        replaces={
            "torch.optim.optimizer:_get_capturable_supported_devices": (
                "fused_optimizers:capturable_devices"
            )
        },
        everywhere=True,
    ),
    _torch(
        "compiled_optimizers",
        reason="a compiled optimizer's step counts are moved to the device while it is traced",
        test="tests/users/compiled_optimizers_test.py",
        replaces={
            "torch._dynamo.variables.optimizer:OptimizerVariable.move_step_if_cpu": (
                "dynamo_bridge:move_steps_to_cuda_only"
            )
        },
    ),
    _torch(
        "activation_checkpoint",
        reason="torch.utils.checkpoint needs a module torch.xla, and XLA merges both passes",
        test="tests/users/activation_checkpoint_test.py",
        replaces={
            "torch.utils.checkpoint:_infer_device_type": "activation_checkpoint:infer_device_type",
            # torch._disable_dynamo calls this instead of the function that it wraps.
            "torch.utils.checkpoint:checkpoint.__wrapped__.__dynamo_disable": (
                "activation_checkpoint:checkpoint"
            ),
        },
        adds=True,
    ),
    _torch(
        "autocast",
        reason="torch.autocast sets only one of the two switches that XLA tensors on a GPU use",
        test="tests/users/autocast_test.py",
        replaces={
            f"torch.amp.autocast_mode:autocast.{name}": f"autocast:{make}"
            for name, make in (
                ("__init__", "initialize"),
                ("__enter__", "enter"),
                ("__exit__", "leave"),
            )
        },
    ),
    _torch(
        "inference_mode",
        reason="functionalized tensors cannot have views in PyTorch's inference mode",
        test="tests/users/inference_mode_test.py",
        replaces={"torch._C:_InferenceMode": "inference_mode:without_gradients"},
    ),
    _torch(
        "strided_views",
        reason="Tensor.contiguous() of an XLA tensor's view returns the view, without a copy",
        test="tests/aten_overrides/strides_test.py",
        replaces={"torch:Tensor.contiguous": "strided_views:contiguous"},
    ),
    fix(
        "clip_grad_norm",
        versions="torch 2.8, torch_xla 2.8",
        reason="torch_xla replaces PyTorch's function by an older one, which refuses foreach=True",
        test="tests/users/training_loops_test.py",
        replaces={"torch.nn.utils:clip_grad_norm_": "patched_functions:clip_grad_norm"},
    ),
    _torch(
        "norm",
        reason="torch.norm of an XLA tensor refuses a dtype unless the norm's order is given",
        test="tests/aten_overrides/dtype_argument_test.py",
        replaces={"torch.functional:norm": "patched_functions:norm"},
        everywhere=True,
    ),
    _torch(
        "fake_devices",
        reason='fake tensors on "xla" lack a device index, so that their devices seem to differ',
        test="tests/users/compiled_programs_test.py",
        replaces={
            "torch._subclasses.fake_tensor:FakeTensor.__new__": "fake_devices:new_fake_tensor"
        },
    ),
    _torch(
        "openxla_backend",
        reason="torch.compile derives arguments that share memory by strides, which XLA lacks",
        test="tests/users/compiled_views_test.py",
        replaces={
            f"{_BACKEND}:openxla": "dynamo_bridge:openxla_backend",
            "torch._dynamo.backends.registry:_COMPILER_FNS.openxla": (
                "dynamo_bridge:openxla_backend"
            ),
        },
        after=(_BACKEND,),
    ),
    _torch(
        "inductor",
        reason="torch.compile without a backend asks inductor, which has no code for XLA devices",
        test="tests/users/compiled_by_default_test.py",
        replaces={"torch._inductor.compile_fx:compile_fx": "dynamo_bridge:inductor"},
    ),
    _torch(
        "flex_attention",
        reason="flex_attention refuses XLA tensors",
        test="tests/users/flex_attention_test.py",
        replaces={
            "torch._dynamo._trace_wrapped_higher_order_op:mod_index": "flex_attention:index",
            "torch.nn.attention.flex_attention:_validate_device": "flex_attention:validate_device",
            "torch.nn.attention.flex_attention:flex_attention_hop": "flex_attention:operator",
            "torch.nn.attention.flex_attention:flex_attention": "flex_attention:flex_attention",
        },
        everywhere=True,
    ),
)
