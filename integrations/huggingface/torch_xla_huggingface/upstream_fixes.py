"""List the functions of Hugging Face's libraries that are replaced for XLA devices.

torch_xla_ext_startup.install applies the rows when the libraries are imported. `import torch_xla`
imports this module, so it imports none of the libraries.
"""

from xla_kernels.replacement import Fix

_HOOKS = "torch_xla_huggingface.transformers_hooks"
_SHARED_TENSORS = "torch_xla_huggingface.shared_tensors"

FIXES = (
    Fix(
        "generation",
        versions="transformers 4.55 to 5.24",
        reason="model.generate compiles a program for each token",
        test="tests/integrations/huggingface/generate_test.py",
        replaces={"transformers.generation.utils:GenerationMixin.generate": f"{_HOOKS}:generate"},
    ),
    Fix(
        "inputs_on_host",
        versions="transformers 4.55 to 5.24",
        reason="transformers 5 moves inputs to the device, which generate.py reads on the host",
        test="tests/integrations/huggingface/generate_test.py",
        replaces={
            "transformers.generation.utils:GenerationMixin.prepare_inputs_for_generation": (
                f"{_HOOKS}:prepare_inputs"
            ),
            "transformers.modeling_utils:ModuleUtilsMixin.device": f"{_HOOKS}:device",
        },
    ),
    Fix(
        "packed_sequences",
        versions="transformers 4.55 to 5.24",
        reason="transformers reads positions in each training step, or makes an unneeded causal "
        "mask",
        test="tests/integrations/huggingface/masks_test.py",
        replaces={
            "transformers.masking_utils:find_packed_sequence_indices": (
                "torch_xla_huggingface.positions:find_packed_sequence_indices"
            )
        },
    ),
    Fix(
        "padding",
        versions="transformers 4.55 to 5.24",
        reason="transformers reads whether a batch has padding in each forward pass, or twice",
        test="tests/integrations/huggingface/masks_test.py",
        replaces={
            **{
                f"transformers.masking_utils:{name}": "torch_xla_huggingface.padding:ignores"
                for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
            },
            "transformers.modeling_utils:PreTrainedModel.warn_if_padding_and_no_attention_mask": (
                "torch_xla_huggingface.padding:warns_of_padding"
            ),
        },
    ),
    Fix(
        "grouped_attention",
        versions="transformers 4.55 to 5.24",
        reason="transformers repeats the heads of keys for attention on XLA devices",
        test="tests/integrations/huggingface/masks_test.py",
        replaces={
            "transformers.integrations.sdpa_attention:use_gqa_in_sdpa": (
                f"{_HOOKS}:use_gqa_in_sdpa"
            )
        },
    ),
    Fix(
        "moe",
        versions="transformers 4.55 to 5.24",
        reason="an MoE layer reads on the host which experts have tokens",
        test="tests/integrations/huggingface/moe_test.py",
        replaces={"transformers.models.*.modeling_*:*": "torch_xla_huggingface.moe:without_reads"},
    ),
    Fix(
        "experts",
        versions="transformers 4.55 to 5.24",
        reason="experts read on the host which of them have tokens, or scatter rows",
        test="tests/integrations/huggingface/experts_test.py",
        replaces={
            "transformers.integrations.moe:ExpertsInterface.get_interface": (
                "torch_xla_huggingface.experts:without_reads"
            ),
            "transformers.integrations.moe:_can_use_grouped_mm": (
                "torch_xla_huggingface.experts:can_use_grouped_mm"
            ),
        },
    ),
    Fix(
        "shared_tensors",
        versions="safetensors 0.8, huggingface_hub 0.34 to 2.4",
        reason="safetensors compares addresses of storages, which XLA tensors lack",
        test="tests/integrations/huggingface/save_test.py",
        replaces={
            f"{module}:{name}": f"{_SHARED_TENSORS}:with_host_tensors"
            for module in ("safetensors.torch", "huggingface_hub.serialization._torch")
            for name in ("_find_shared_tensors", "_remove_duplicate_names")
        },
    ),
    Fix(
        "tensor_identity",
        versions="accelerate 1.10 to 1.15",
        reason="accelerate asks for addresses of storages, which XLA tensors lack",
        test="tests/integrations/huggingface/save_test.py",
        replaces={
            "accelerate.utils.modeling:id_tensor_storage": f"{_SHARED_TENSORS}:id_tensor_storage"
        },
    ),
    Fix(
        "compiled_models",
        versions="accelerate 1.10 to 1.15",
        reason="accelerate does not find the parameters of a model that it has compiled",
        test="tests/integrations/huggingface/trainer_test.py",
        replaces={
            "accelerate.accelerator:Accelerator._get_named_parameters": (
                "torch_xla_huggingface.compiled_models:parameters_by_name"
            )
        },
    ),
    Fix(
        "accelerate_loader",
        versions="accelerate 1.10 to 1.15",
        reason="accelerate's loader reads ahead, and treats several batches as the last one",
        test="tests/integrations/huggingface/trainer_test.py",
        replaces={
            "accelerate.data_loader:MpDeviceLoaderWrapper.__iter__": (
                "torch_xla_huggingface.accelerate_loader:batches"
            )
        },
    ),
)
