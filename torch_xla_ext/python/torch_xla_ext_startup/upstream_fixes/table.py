"""List the replaced functions of PyTorch, torch_xla and Triton.

A row has a function, its replacement and the reason. To add a row, write a function that receives
the original and returns the replacement, name it here, and name the test file that fails without
it. torch_xla_huggingface.upstream_fixes has a separate table. tests/upstream_fixes checks that each
row replaces the functions that it names, and can be reverted.
"""

from torch_xla_ext_startup.upstream_fixes import pytorch_table
from torch_xla_ext_startup.upstream_fixes.row import torch_fix as _torch
from torch_xla_ext_startup.upstream_fixes.row import torch_xla_fix as _torch_xla
from xla_kernels.triton.fixes import fixes

_BRIDGE = "torch_xla._dynamo.dynamo_bridge"
_SHARDING = "torch_xla.distributed.spmd.xla_sharding"
_SHARDED = "torch_xla.distributed.spmd.xla_sharded_tensor:XLAShardedTensor"
_LOADER = "torch_xla.distributed.parallel_loader"
_CHECKPOINTS = "torch_xla.experimental.distributed_checkpoint"
_FLATTENED = "torch_xla.distributed.fsdp.xla_flatten_params_wrapper"
_KERNELS = "torch_xla.experimental.custom_kernel"

FIXES = (
    *pytorch_table.FIXES,
    # torch_xla
    _torch_xla(
        "root_logger",
        reason="a warning of torch_xla.runtime adds a handler to the root logger",
        test="tests/wheel/import_test.py",
        replaces={"torch_xla.runtime:logging": "root_logger:logger"},
    ),
    _torch_xla(
        "step_marker",
        reason="torch_xla.sync(wait=True) returns before the program has ended, and it is unknown "
        "whether the program calls it",
        test="tests/users/waiting_test.py",
        replaces={"_XLAC:_xla_step_marker": "training_steps:step_marker"},
    ),
    _torch_xla(
        "unlazy",
        reason="xm.unlazy returns before the program has ended",
        test="tests/users/waiting_test.py",
        replaces={"torch_xla.core.xla_model:unlazy": "training_steps:unlazy"},
    ),
    _torch_xla(
        "gru",
        reason="torch_xla's GRU refuses tensors of other devices, packed sequences and Dynamo",
        test="tests/users/recurrent_layers_test.py",
        replaces={"torch_xla.experimental.gru:GRU.forward": "patched_functions:gru"},
    ),
    _torch_xla(
        "to_dlpack",
        reason="to_dlpack refuses a tensor that is pending or being computed",
        test="tests/users/dlpack_test.py",
        replaces={"torch_xla.utils.dlpack:to_dlpack": "dlpack:to_dlpack"},
    ),
    _torch_xla(
        "xla_autocast",
        reason="torch_xla.amp.autocast fails on the CPU and in torch.compile",
        test="tests/users/autocast_test.py",
        replaces={"torch_xla.amp.autocast_mode:autocast": "autocast:xla_autocast"},
    ),
    _torch_xla(
        "loader_exceptions",
        reason="an exception in a loader's thread ends the loop as if there were no more data",
        test="tests/users/loaders_test.py",
        replaces={
            f"{_LOADER}:ParallelLoader.{name}": f"loaders:{make}"
            for name, make in (("_loader_worker", "loader_worker"), ("_worker", "worker"))
        },
    ),
    _torch_xla(
        "nested_loops",
        reason="a second loop over a MpDeviceLoader ends the first one without an error",
        test="tests/users/loaders_test.py",
        replaces={f"{_LOADER}:MpDeviceLoader.__iter__": "loaders:iterate"},
    ),
    _torch_xla(
        "batches",
        reason="tuples become lists, and a dict of shardings an AttributeError",
        test="tests/users/loaders_test.py",
        replaces={
            "torch_xla.core.xla_model:send_cpu_data_to_device": "batches:send",
            "torch_xla.utils.utils:_for_each_instance_rewrite": "batches:rewrite",
        },
    ),
    _torch_xla(
        "sharding_spec",
        reason="a ShardingSpec with fewer axes than its mesh slices batches in too many dimensions",
        test="tests/users/loaders_test.py",
        replaces={f"{_SHARDING}:ShardingSpec.__post_init__": "sharding_spec:tile_and_replicate"},
    ),
    _torch_xla(
        "hybrid_mesh",
        reason="a HybridMesh of other devices than TPUs is an AssertionError without a text",
        test="tests/sharding/uneven_test.py",
        replaces={f"{_SHARDING}:HybridMesh._create_device_mesh": "sharding_spec:device_mesh"},
    ),
    _torch_xla(
        "uneven_shardings",
        reason="sizes that a mesh does not divide abort the process, or give wrong numbers",
        test="tests/sharding/uneven_test.py",
        replaces={
            f"{_SHARDING}:mark_sharding": "uneven_shardings:mark_sharding",
            f"{_SHARDING}:annotate_custom_sharding": "uneven_shardings:mark_sharding",
            f"{_SHARDING}:ShardingSpec.xla_spec": "uneven_shardings:xla_spec",
            "torch_xla.experimental.spmd_fully_sharded_data_parallel:"
            "_prepare_spmd_partition_spec": "uneven_shardings:parameter_spec",
        },
        everywhere=True,
    ),
    _torch_xla(
        "collectives",
        reason="collectives of threads hang; those of one process ignore their scale and groups, "
        "and so do those of parts in regions of manual sharding",
        test="tests/users/collectives_test.py",
        replaces={
            "torch_xla.core.xla_model:reduce_gradients": "collectives:reduce_gradients",
            **{
                f"torch_xla.core.xla_model:{name}": "collectives:checked"
                for name in (
                    *("all_gather", "all_reduce", "all_to_all", "collective_broadcast"),
                    *("collective_permute", "recv", "reduce_scatter", "send"),
                )
            },
        },
        everywhere=True,
    ),
    _torch_xla(
        "gradients_of_sums",
        reason="in regions of manual sharding, gradients of a sum are those of one device",
        test="tests/sharding/manual_test.py",
        replaces={"torch_xla.core.functions:all_reduce": "collectives:all_reduce"},
    ),
    _torch_xla(
        "mark_sharding",
        reason="mark_sharding fails for a tensor that has another sharding, or no value yet, and "
        "clear_sharding for one that has no value yet",
        test="tests/users/sharded_programs_test.py",
        replaces={
            "_XLAC:_xla_mark_sharding": "late_sharding:mark_sharding",
            "_XLAC:_xla_clear_sharding": "late_sharding:clear_sharding",
        },
    ),
    _torch_xla(
        "fully_sharded",
        reason="parameters of XlaFullyShardedDataParallel(compute_dtype=…) report another dtype",
        test="tests/users/fully_sharded_test.py",
        replaces={"_XLAC:_replace_xla_tensor": "fully_sharded:replace_xla_tensor"},
    ),
    _torch_xla(
        "tied_weights",
        reason="a weight of two XlaFullyShardedDataParallel is no longer tied, or fails later",
        test="tests/users/fully_sharded_test.py",
        replaces={f"{_FLATTENED}:XlaFlattenParamsWrapper.__init__": "fully_sharded:initialize"},
        after=(_FLATTENED,),
    ),
    _torch_xla(
        "exported_programs",
        reason="StableHLO of a program for several devices has calls that only this process knows",
        test="tests/sharding/reads_test.py",
        replaces={
            f"_XLAC:{name}": f"exported_programs:{name.removeprefix('_')}"
            for name in ("_get_stablehlo", "_run_stablehlo")
        },
    ),
    _torch_xla(
        "sharded_tensors",
        reason="PyTorch refuses numpy(), tolist() and formatting of results of marked tensors",
        test="tests/users/marked_tensors_test.py",
        replaces={
            f"{_SHARDED}.__torch_dispatch__": "sharded_tensors:torch_dispatch",
            f"{_SHARDED}.__torch_function__": "sharded_tensors:torch_function",
            f"{_SHARDED}.__format__": "sharded_tensors:method",
            f"{_SHARDED}.tolist": "sharded_tensors:method",
        },
    ),
    _torch_xla(
        "saved_sharded_tensors",
        reason="torch.load(weights_only=True) refuses marked tensors, which are saved twice",
        test="tests/users/marked_tensors_test.py",
        replaces={f"{_SHARDED}.__reduce_ex__": "sharded_tensors:reduce_ex"},
    ),
    _torch_xla(
        "device_meshes",
        reason="DTensor.from_local and others name an attribute that XLA's DeviceMesh lacks",
        test="tests/users/marked_tensors_test.py",
        replaces={
            "torch.distributed.device_mesh:DeviceMesh.__getattr__": (
                "sharded_tensors:missing_attribute"
            )
        },
        after=("torch_xla.distributed.spmd.xla_sharded_tensor",),
        adds=True,
    ),
    _torch_xla(
        "use_spmd",
        reason="use_spmd() after a device was used ends in a segmentation fault",
        test="tests/users/sharded_programs_test.py",
        replaces={"torch_xla.runtime:use_spmd": "late_sharding:use_spmd"},
        everywhere=True,
    ),
    _torch_xla(
        "manual_sharding",
        reason="gradients do not pass through regions of manual sharding, whose sizes may be "
        "uneven",
        test="tests/sharding/manual_test.py",
        replaces={
            f"{_SHARDING}:enable_manual_sharding": "manual_sharding:enable",
            f"{_SHARDING}:disable_manual_sharding": "manual_sharding:disable",
        },
        everywhere=True,
    ),
    _torch_xla(
        "checkpoint_planners",
        reason="checkpoints lack tensors that are divided along only some axes of a mesh",
        test="tests/users/checkpoints_test.py",
        replaces={
            f"{_CHECKPOINTS}.planners:dedup_tensors": "checkpoints:dedup_tensors",
            f"{_CHECKPOINTS}.planners:_create_xla_read_items": "checkpoints:create_xla_read_items",
            f"{_CHECKPOINTS}.planners:SPMDSavePlanner.set_up_planner": (
                "checkpoints:set_up_save_planner"
            ),
            f"{_CHECKPOINTS}.planners:SPMDLoadPlanner.load_bytes": "checkpoints:load_bytes",
            "torch_xla.distributed.spmd.xla_sharded_tensor:XLAShard.unpadded_data": (
                "checkpoints:unpadded_data"
            ),
        },
        after=(f"{_CHECKPOINTS}.planners",),
    ),
    _torch_xla(
        "checkpoint_manager",
        reason="CheckpointManager fails except on TPUs, and save_async writes later values",
        test="tests/users/checkpoints_test.py",
        replaces={
            f"{_CHECKPOINTS}.manager:_sharded_cpu_state_dict": "checkpoints:state_at_the_call",
            **{
                f"{_CHECKPOINTS}.manager:CheckpointManager.{name}": f"checkpoints:{make}"
                for name, make in (
                    ("__init__", "make_manager"),
                    ("join", "join"),
                    ("save_async", "save_async"),
                )
            },
        },
    ),
    _torch_xla(
        "one_process_on_a_host",
        reason="the only process on a host counts as the only process of the program",
        test="tests/plugin/rendezvous_test.py",
        replaces={
            "torch_xla._internal.pjrt:initialize_singleprocess": (
                "process_groups:initialize_singleprocess"
            )
        },
    ),
    _torch_xla(
        "custom_kernels",
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
    _torch_xla(
        "dynamo_bridge",
        reason="torch_xla's bridge keeps a graph's first arguments, and copies PyTorch's own "
        "tensors",
        test="tests/users/compiled_programs_test.py",
        replaces={
            f"{_BRIDGE}:{name}": "dynamo_bridge:function_of_bridge"
            for name in (
                *("extract_compiled_graph_helper", "extract_internal"),
                "partition_fx_graph_for_cpu_fallback",
            )
        },
    ),
    _torch_xla(
        "while_loop",
        reason="a while_loop's carried values are numbered by first use, so that a swap is lost",
        test="tests/users/loops_test.py",
        replaces={
            "torch_xla.experimental.fori_loop:_xla_while_loop_wrapper": (
                "while_loop:while_loop_wrapper"
            )
        },
    ),
    _torch_xla(
        "scalar_constants",
        reason="the default device moves a loop's constants to XLA, where they have no value",
        test="tests/users/loops_test.py",
        replaces={"torch_xla.core.xla_builder:Op.scalar": "loop_functions:scalar"},
    ),
    _torch_xla(
        "scan",
        reason="scan accepts no integers, no outer tensors and no results without gradients",
        test="tests/users/loops_test.py",
        replaces={"torch_xla.experimental.scan:scan": "scan:scan_of_any_function"},
        everywhere=True,
    ),
    _torch_xla(
        "scan_layers",
        reason="scan_layers runs the first layer's program for all, whatever their attributes are",
        test="tests/users/loops_test.py",
        replaces={
            "torch_xla.experimental.scan_layers:scan_layers": "scan_layers:scan_layers_of_any_kind"
        },
        everywhere=True,
    ),
    _torch_xla(
        "called_programs",
        reason="results of assume_pure have the structure of the function that was traced last",
        test="tests/users/pure_functions_test.py",
        replaces={
            "torch_xla.core.xla_builder:CompiledCallableWithCache.__call__": "called_programs:call"
        },
    ),
    _torch_xla(
        "assume_pure",
        reason="assume_pure loses a function's writes to arguments, and fails in 64 bits",
        test="tests/users/pure_functions_test.py",
        replaces={"torch_xla.experimental.assume_pure:assume_pure": "assume_pure:assume_pure"},
        everywhere=True,
    ),
    # Triton
    *fixes("torch_xla_ext"),
    _torch(
        "triton_operators",
        reason="operators of torch.library.triton_op cannot write to functionalized tensors",
        test="tests/launchers/triton_launch_test.py",
        replaces={"torch._library.triton:custom_op": "xla_kernels.triton.launch_hooks:custom_op"},
        after=("torch_xla_ext", "triton.runtime.jit"),
    ),
)
