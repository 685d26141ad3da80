"""The replaced functions of PyTorch, torch_xla and Triton.

A row says what is replaced, by which function, and why. To add one, write a function that takes the
original and returns the replacement, name it here, and name the file of the test that fails without
it. torch_xla_huggingface.upstream_fixes has a table of its own. tests/upstream_fixes checks that
each row replaces what it names, and can be taken back.
"""

from torch_xla_ext_startup.replacement import Fix

_HERE = "torch_xla_ext_startup.upstream_fixes"
_BACKEND = "torch._dynamo.backends.torchxla"
_BRIDGE = "torch_xla._dynamo.dynamo_bridge"
_SHARDING = "torch_xla.distributed.spmd.xla_sharding"
_LOADER = "torch_xla.distributed.parallel_loader"
_CHECKPOINTS = "torch_xla.experimental.distributed_checkpoint"
_KERNELS = "torch_xla.experimental.custom_kernel"
_TRITON = "torch_xla_ext.launchers.triton.launch_hooks"

FIXES = (
    # PyTorch
    Fix(
        "xla_gpu_operators",
        versions="torch 2.8",
        reason="torch.ops.xla_gpu lacks our operators until torch_xla_ext is imported",
        test="tests/wheel/import_test.py",
        replaces={"torch:ops.xla_gpu": f"{_HERE}.operator_namespace:xla_gpu"},
        adds=True,
    ),
    Fix(
        "quantized_operators",
        versions="torch 2.8",
        reason="torch.ops.quantized_decomposed is empty until its module is imported",
        test="tests/wheel/import_test.py",
        replaces={
            "torch:ops.quantized_decomposed": f"{_HERE}.operator_namespace:quantized_decomposed"
        },
        adds=True,
    ),
    Fix(
        "custom_operators",
        versions="torch 2.8",
        reason="what a custom_op's function writes to a view of its own tensors is lost",
        test="tests/users/custom_operators_test.py",
        replaces={
            "torch._library.custom_ops:CustomOpDef.register_kernel": (
                f"{_HERE}.custom_operators:register_kernel"
            )
        },
    ),
    Fix(
        "module_parameters",
        versions="torch 2.8",
        reason="a module that moves gets new parameters, so that tied weights become two",
        test="tests/users/moved_modules_test.py",
        replaces={"torch.nn.modules.module:Module._apply": f"{_HERE}.module_parameters:apply"},
    ),
    Fix(
        "loading",
        versions="torch 2.8",
        reason='torch.load(map_location="xla") fails, since XLA tensors have no storage',
        test="tests/graph/optimizers_test.py",
        replaces={"torch._utils:_rebuild_tensor": f"{_HERE}.loading:rebuild_tensor"},
    ),
    Fix(
        "random_seed",
        versions="torch 2.8",
        reason="torch.manual_seed sets the seeds of all devices but XLA's",
        test="tests/users/random_seed_test.py",
        replaces={"torch.random:_seed_custom_device": f"{_HERE}.random_seed:seed_custom_device"},
    ),
    Fix(
        "fork_rng",
        versions="torch 2.8",
        reason="torch.random.fork_rng refuses XLA devices, and loses their state by default",
        test="tests/users/random_seed_test.py",
        replaces={"torch.random:fork_rng": f"{_HERE}.random_seed:fork_rng"},
    ),
    Fix(
        "generators",
        versions="torch 2.8",
        reason='torch.Generator(device="xla") is refused, as not of an accelerator',
        test="tests/users/random_seed_test.py",
        replaces={"torch:Generator": f"{_HERE}.generators:generator"},
    ),
    Fix(
        "functionalize",
        versions="torch 2.8",
        reason="torch.func.functionalize fails an assertion for XLA tensors",
        test="tests/users/dispatch_modes_test.py",
        replaces={
            "torch._functorch.eager_transforms:functionalize": (
                f"{_HERE}.functionalize:functionalize"
            )
        },
        everywhere=True,
    ),
    Fix(
        "fused_optimizers",
        versions="torch 2.8",
        reason="optimizers refuse fused=True for XLA tensors",
        test="tests/users/training_loops_test.py",
        replaces={
            "torch.optim.optimizer:_get_fused_kernels_supported_devices": (
                f"{_HERE}.fused_optimizers:fused_devices"
            )
        },
    ),
    Fix(
        "capturable_optimizers",
        versions="torch 2.8",
        reason="optimizers refuse capturable=True with foreach=True for XLA tensors",
        test="tests/users/training_loops_test.py",
        replaces={
            "torch.optim.optimizer:_get_capturable_supported_devices": (
                f"{_HERE}.fused_optimizers:capturable_devices"
            )
        },
        everywhere=True,
    ),
    Fix(
        "activation_checkpoint",
        versions="torch 2.8",
        reason="torch.utils.checkpoint asks for a module torch.xla, and XLA merges both passes",
        test="tests/users/activation_checkpoint_test.py",
        replaces={
            "torch.utils.checkpoint:_infer_device_type": (
                f"{_HERE}.activation_checkpoint:infer_device_type"
            ),
            # What torch._disable_dynamo calls instead of the function that it wraps.
            "torch.utils.checkpoint:checkpoint.__wrapped__.__dynamo_disable": (
                f"{_HERE}.activation_checkpoint:checkpoint"
            ),
        },
        adds=True,
    ),
    Fix(
        "autocast",
        versions="torch 2.8",
        reason="torch.autocast turns one of the two switches that XLA tensors on a GPU ask",
        test="tests/users/autocast_test.py",
        replaces={
            f"torch.amp.autocast_mode:autocast.{name}": f"{_HERE}.autocast:{make}"
            for name, make in (
                ("__init__", "initialize"),
                ("__enter__", "enter"),
                ("__exit__", "leave"),
            )
        },
    ),
    Fix(
        "inference_mode",
        versions="torch 2.8",
        reason="PyTorch has no views of functionalized tensors in its inference mode",
        test="tests/users/inference_mode_test.py",
        replaces={"torch._C:_InferenceMode": f"{_HERE}.inference_mode:without_gradients"},
    ),
    Fix(
        "strided_views",
        versions="torch 2.8",
        reason="Tensor.contiguous() of an XLA tensor's view returns the view, without a copy",
        test="tests/aten_overrides/strides_test.py",
        replaces={"torch:Tensor.contiguous": f"{_HERE}.strided_views:contiguous"},
    ),
    Fix(
        "clip_grad_norm",
        versions="torch 2.8, torch_xla 2.8",
        reason="torch_xla puts an older function in place of PyTorch's, which refuses foreach=True",
        test="tests/users/training_loops_test.py",
        replaces={"torch.nn.utils:clip_grad_norm_": f"{_HERE}.patched_functions:clip_grad_norm"},
    ),
    Fix(
        "norm",
        versions="torch 2.8",
        reason="torch.norm of an XLA tensor refuses a dtype unless it gets the norm's order",
        test="tests/aten_overrides/dtype_argument_test.py",
        replaces={"torch.functional:norm": f"{_HERE}.patched_functions:norm"},
        everywhere=True,
    ),
    Fix(
        "fake_devices",
        versions="torch 2.8",
        reason='fake tensors on "xla" lack their device\'s number, so that operands differ',
        test="tests/users/compiled_programs_test.py",
        replaces={
            "torch._subclasses.fake_tensor:FakeTensor.__new__": (
                f"{_HERE}.dynamo_bridge:new_fake_tensor"
            )
        },
        after=(_BACKEND,),
    ),
    Fix(
        "openxla_backend",
        versions="torch 2.8",
        reason="torch.compile derives arguments that share memory by strides, which XLA lacks",
        test="tests/users/compiled_views_test.py",
        replaces={
            f"{_BACKEND}:openxla": f"{_HERE}.dynamo_bridge:openxla_backend",
            "torch._dynamo.backends.registry:_COMPILER_FNS.openxla": (
                f"{_HERE}.dynamo_bridge:openxla_backend"
            ),
        },
        after=(_BACKEND,),
    ),
    # torch_xla
    Fix(
        "root_logger",
        versions="torch_xla 2.8",
        reason="a warning of torch_xla.runtime adds a handler to the root logger",
        test="tests/wheel/import_test.py",
        replaces={"torch_xla.runtime:logging": f"{_HERE}.root_logger:logger"},
    ),
    Fix(
        "step_marker",
        versions="torch_xla 2.8",
        reason="nothing says whether the program calls torch_xla.sync() itself",
        test="tests/users/forgotten_sync_test.py",
        replaces={"_XLAC:_xla_step_marker": f"{_HERE}.training_steps:step_marker"},
    ),
    Fix(
        "gru",
        versions="torch_xla 2.8",
        reason="torch_xla's GRU refuses tensors of other devices, packed sequences and Dynamo",
        test="tests/users/recurrent_layers_test.py",
        replaces={"torch_xla.experimental.gru:GRU.forward": f"{_HERE}.patched_functions:gru"},
    ),
    Fix(
        "xla_autocast",
        versions="torch_xla 2.8",
        reason="torch_xla.amp.autocast fails on the CPU",
        test="tests/users/autocast_test.py",
        replaces={"torch_xla.amp.autocast_mode:autocast": f"{_HERE}.autocast:xla_autocast"},
    ),
    Fix(
        "loader_exceptions",
        versions="torch_xla 2.8",
        reason="an exception in a thread of a loader ends the loop as if there were no more data",
        test="tests/users/loaders_test.py",
        replaces={
            f"{_LOADER}:ParallelLoader.{name}": f"{_HERE}.loaders:{make}"
            for name, make in (("_loader_worker", "loader_worker"), ("_worker", "worker"))
        },
    ),
    Fix(
        "nested_loops",
        versions="torch_xla 2.8",
        reason="a second loop over a MpDeviceLoader ends the first one without an error",
        test="tests/users/loaders_test.py",
        replaces={f"{_LOADER}:MpDeviceLoader.__iter__": f"{_HERE}.loaders:iterate"},
    ),
    Fix(
        "sharding_spec",
        versions="torch_xla 2.8",
        reason="a ShardingSpec of fewer axes than its mesh's slices batches in too many dimensions",
        test="tests/users/loaders_test.py",
        replaces={
            f"{_SHARDING}:ShardingSpec.__post_init__": f"{_HERE}.sharding_spec:tile_and_replicate"
        },
    ),
    Fix(
        "uneven_shardings",
        versions="torch_xla 2.8",
        reason="sizes that a mesh does not divide abort the process, or give wrong numbers",
        test="tests/sharding/uneven_test.py",
        replaces={
            f"{_SHARDING}:mark_sharding": f"{_HERE}.uneven_shardings:mark_sharding",
            f"{_SHARDING}:annotate_custom_sharding": f"{_HERE}.uneven_shardings:mark_sharding",
            f"{_SHARDING}:ShardingSpec.xla_spec": f"{_HERE}.uneven_shardings:xla_spec",
            "torch_xla.experimental.spmd_fully_sharded_data_parallel:"
            "_prepare_spmd_partition_spec": f"{_HERE}.uneven_shardings:parameter_spec",
        },
        everywhere=True,
    ),
    Fix(
        "mark_sharding",
        versions="torch_xla 2.8",
        reason="mark_sharding fails for a tensor that has another sharding, or no value yet",
        test="tests/users/sharded_programs_test.py",
        replaces={"_XLAC:_xla_mark_sharding": f"{_HERE}.late_sharding:mark_sharding"},
    ),
    Fix(
        "exported_programs",
        versions="torch_xla 2.8",
        reason="StableHLO of a program for several devices has calls that only this process knows",
        test="tests/sharding/reads_test.py",
        replaces={
            f"_XLAC:{name}": f"{_HERE}.exported_programs:{name.removeprefix('_')}"
            for name in ("_get_stablehlo", "_run_stablehlo")
        },
    ),
    Fix(
        "use_spmd",
        versions="torch_xla 2.8",
        reason="use_spmd() after a device was used ends in a segmentation fault",
        test="tests/users/sharded_programs_test.py",
        replaces={"torch_xla.runtime:use_spmd": f"{_HERE}.late_sharding:use_spmd"},
        everywhere=True,
    ),
    Fix(
        "manual_sharding",
        versions="torch_xla 2.8",
        reason="no gradient passes a region of manual sharding, whose sizes may be uneven",
        test="tests/sharding/manual_test.py",
        replaces={
            f"{_SHARDING}:enable_manual_sharding": f"{_HERE}.manual_sharding:enable",
            f"{_SHARDING}:disable_manual_sharding": f"{_HERE}.manual_sharding:disable",
        },
        everywhere=True,
    ),
    Fix(
        "checkpoint_planners",
        versions="torch_xla 2.8",
        reason="checkpoints lack tensors that are divided along some axes of a mesh only",
        test="tests/users/checkpoints_test.py",
        replaces={
            f"{_CHECKPOINTS}.planners:dedup_tensors": f"{_HERE}.checkpoints:dedup_tensors",
            f"{_CHECKPOINTS}.planners:_create_xla_read_items": (
                f"{_HERE}.checkpoints:create_xla_read_items"
            ),
            f"{_CHECKPOINTS}.planners:SPMDSavePlanner.set_up_planner": (
                f"{_HERE}.checkpoints:set_up_save_planner"
            ),
            f"{_CHECKPOINTS}.planners:SPMDLoadPlanner.load_bytes": (
                f"{_HERE}.checkpoints:load_bytes"
            ),
            "torch_xla.distributed.spmd.xla_sharded_tensor:XLAShard.unpadded_data": (
                f"{_HERE}.checkpoints:unpadded_data"
            ),
        },
        after=(f"{_CHECKPOINTS}.planners",),
    ),
    Fix(
        "checkpoint_manager",
        versions="torch_xla 2.8",
        reason="CheckpointManager fails except on TPUs, and save_async writes later values",
        test="tests/users/checkpoints_test.py",
        replaces={
            f"{_CHECKPOINTS}.manager:_sharded_cpu_state_dict": (
                f"{_HERE}.checkpoints:state_at_the_call"
            ),
            **{
                f"{_CHECKPOINTS}.manager:CheckpointManager.{name}": f"{_HERE}.checkpoints:{make}"
                for name, make in (
                    ("__init__", "make_manager"),
                    ("join", "join"),
                    ("save_async", "save_async"),
                )
            },
        },
    ),
    Fix(
        "one_process_on_a_host",
        versions="torch_xla 2.8",
        reason="a process that is alone on its host takes itself for the only one",
        test="tests/plugin/rendezvous_test.py",
        replaces={
            "torch_xla._internal.pjrt:initialize_singleprocess": (
                f"{_HERE}.process_groups:initialize_singleprocess"
            )
        },
    ),
    Fix(
        "custom_kernels",
        versions="torch_xla 2.8",
        reason="torch_xla's kernels for TPUs return uninitialized memory on other devices",
        test="tests/ops/upstream_test.py",
        replaces={
            f"{_KERNELS}:{name}": "torch_xla_ext.custom_kernel.install:function_of_any_device"
            for name in (
                *("flash_attention", "gmm", "multi_queries_paged_attention", "paged_attention"),
                *("quantized_matmul_int8", "ragged_paged_attention", "tgmm"),
            )
        },
    ),
    Fix(
        "dynamo_bridge",
        versions="torch_xla 2.8",
        reason="torch_xla's bridge keeps a graph's first arguments, and copies tensors of PyTorch",
        test="tests/users/compiled_programs_test.py",
        replaces={
            f"{_BRIDGE}:{name}": f"{_HERE}.dynamo_bridge:function_of_bridge"
            for name in (
                *("extract_compiled_graph_helper", "extract_internal"),
                "partition_fx_graph_for_cpu_fallback",
            )
        },
    ),
    Fix(
        "while_loop",
        versions="torch_xla 2.8",
        reason="what a while_loop carries is numbered by first use, so that a swap is lost",
        test="tests/users/loops_test.py",
        replaces={
            "torch_xla.experimental.fori_loop:_xla_while_loop_wrapper": (
                f"{_HERE}.while_loop:while_loop_wrapper"
            )
        },
    ),
    Fix(
        "scan",
        versions="torch_xla 2.8",
        reason="scan takes no integers, no tensors of outside, no results without gradients",
        test="tests/users/loops_test.py",
        replaces={"torch_xla.experimental.scan:scan": f"{_HERE}.scan:scan_of_any_function"},
        everywhere=True,
    ),
    Fix(
        "scan_layers",
        versions="torch_xla 2.8",
        reason="scan_layers runs all layers as the first, whatever their attributes are",
        test="tests/users/loops_test.py",
        replaces={
            "torch_xla.experimental.scan_layers:scan_layers": (
                f"{_HERE}.scan_layers:scan_layers_of_any_kind"
            )
        },
        everywhere=True,
    ),
    Fix(
        "called_programs",
        versions="torch_xla 2.8",
        reason="functions of assume_pure get the structure of results of the one traced last",
        test="tests/users/pure_functions_test.py",
        replaces={
            "torch_xla.core.xla_builder:CompiledCallableWithCache.__call__": (
                f"{_HERE}.called_programs:call"
            )
        },
    ),
    Fix(
        "assume_pure",
        versions="torch_xla 2.8",
        reason="assume_pure loses what a function writes to an argument, and fails in 64 bits",
        test="tests/users/pure_functions_test.py",
        replaces={
            "torch_xla.experimental.assume_pure:assume_pure": f"{_HERE}.assume_pure:assume_pure"
        },
        everywhere=True,
    ),
    # Triton
    Fix(
        "triton_launches",
        versions="triton 3.4 and later",
        reason="kernel[grid](...) takes no XLA tensors",
        test="tests/launchers/triton_launch_test.py",
        replaces={
            "triton.runtime.jit:KernelInterface.__getitem__": f"{_TRITON}:getitem",
            "triton.runtime.jit:JITFunction.run": f"{_TRITON}:run",
        },
        after=("torch_xla_ext",),
    ),
    Fix(
        "triton_driver",
        versions="triton 3.4 and later",
        reason="without CUDA, torch.compile takes all tensors of a Triton kernel for written to",
        test="tests/launchers/triton_launch_test.py",
        replaces={
            "triton.runtime.driver:_create_driver": f"{_TRITON}:create_driver",
            # Before Triton 3.5, this keeps the function above.
            "triton.runtime.driver:LazyProxy._initialize_obj": f"{_TRITON}:initialize_driver",
        },
        after=("torch_xla_ext",),
    ),
    Fix(
        "triton_operators",
        versions="torch 2.8",
        reason="operators of torch.library.triton_op cannot write to functionalized tensors",
        test="tests/launchers/triton_launch_test.py",
        replaces={"torch._library.triton:custom_op": f"{_TRITON}:custom_op"},
        after=("torch_xla_ext", "triton.runtime.jit"),
    ),
)
