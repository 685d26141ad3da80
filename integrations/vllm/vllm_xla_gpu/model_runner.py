"""vLLM's model runner for TPUs, adapted to other devices."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch_xla
from torch.utils._pytree import tree_map_only
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, set_default_torch_dtype
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker.tpu_model_runner import TPUModelRunner

import torch_xla_ext
from torch_xla_ext import ops
from torch_xla_ext.graph import CapturedStep
from vllm_xla_gpu import moe, overrides, weights
from vllm_xla_gpu.batch import KNOWN, NO_ADAPTER, Batch, BatchShape, decode_sizes, pack, step_sizes
from vllm_xla_gpu.lora import write_slots_whole
from vllm_xla_gpu.memory import DeviceMemory
from vllm_xla_gpu.processes import fingerprint
from vllm_xla_gpu.sampling import (
    NUM_PARAMS,
    KeyedSampler,
    biased,
    has_biases,
    make_key,
    pack_params,
    penalized,
    penalty_operands,
    unpack_params,
    write_bias,
)
from vllm_xla_gpu.speculation import Drafter
from vllm_xla_gpu.steps import ModelStep, StartedStep
from vllm_xla_gpu.warm_up import CapturedByRows, WarmedUpRunner
from vllm_xla_gpu.weights import Placement, WeightStream

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.models import LoRAModelManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.outputs import LogprobsTensors

    from vllm_xla_gpu.start import Start
    from vllm_xla_gpu.steps import StepResult
    from vllm_xla_gpu.tensor_parallel import Devices

    Operands = tuple[torch.Tensor, ...]

overrides.apply("runner")


class XlaGpuModelRunner(WarmedUpRunner):
    def __init__(
        self,
        vllm_config: VllmConfig,
        device: torch.device,
        start: Start,
        devices: Devices | None = None,
    ) -> None:
        """Initialize a runner without a model.

        Args:
            vllm_config: the engine's configuration.
            device: torch_xla's device.
            start: measures the phases of the engine's start.
            devices: the devices that share the model, if there are several.
        """
        super().__init__(vllm_config, device)
        # Otherwise vLLM would make masks that no program of this runner reads.
        self.input_batch.device = torch.device("cpu")
        self.start = start
        self._devices = devices
        self._peers = None if devices is None else devices.peers
        self._drafter = Drafter.of_config(vllm_config)
        self.weights = 0  # bytes of those that a device has
        self.vocab_size = self.model_config.get_vocab_size()  # vLLM counts adapters' tokens, too
        self.num_tokens_paddings = step_sizes(self.num_tokens_paddings, self.max_num_reqs)
        self._decode_sizes = []
        if self._drafter is None:
            self._decode_sizes = decode_sizes(self.num_tokens_paddings, self.max_num_reqs)
            self.num_tokens_paddings = sorted({*self._decode_sizes, *self.num_tokens_paddings})
        # Each sequence of a step has at least one token, so a step of few tokens has few sequences.
        self.num_reqs_paddings = sorted({self._shape(n).num_seqs for n in self.num_tokens_paddings})
        # A step's CUDA graph reads and writes fixed buffers, or XLA would rewrite the graph each
        # time: the logits, by the number of sequences; the tokens of the last step; and the
        # sampling parameters. See _received and _sent for the others.
        self._logits: dict[int, torch.Tensor] = {}
        self._tokens = self._placed(torch.zeros(self.max_num_reqs, 1, dtype=torch.int64))
        self._sampling_params = self._placed(
            torch.zeros(self.max_num_reqs, NUM_PARAMS, dtype=torch.int32)
        )
        self._bias = self._captured_by_rows(biased)
        self._penalize = self._captured_by_rows(penalized)
        self._best = self._captured_by_rows(self._keep_best)
        self._sampled = self._captured_by_rows(self._keep_sampled)
        # vLLM compiles these with torch.compile, which looks for torch's own CUDA.
        for name in ("structured_decode", "gather_logprobs"):
            setattr(self, name, self._captured_by_rows(self._uncompiled(name)))
        self._logits_of = self._uncompiled("compute_logits")
        self._rows: dict[str, int] = {}  # of the last step's requests, in _tokens
        self._seeds = random.Random(self.model_config.seed)  # of the requests that have none
        self._run = self._captured(self._run_model, self.num_tokens_paddings)

    def _uncompiled(self, name: str) -> Callable[..., Any]:
        """Return the uncompiled original of a method that vLLM's runner compiles."""
        return functools.partial(getattr(TPUModelRunner, name)._torchdynamo_orig_callable, self)

    def _captured(
        self, function: Callable[..., Any], sizes: Iterable[int]
    ) -> dict[int, CapturedStep]:
        """Return the function, captured for each size, which is its first argument."""
        # Python state is not compared, because vLLM's code reads attributes that change from step
        # to step and that no model uses. On several devices, another thread starts the program,
        # because that takes longer than the rest of the host's work for a step.
        return {
            size: torch_xla_ext.capture(
                functools.partial(function, size),
                check_python=False,
                starts_here=self._devices is None,
            )
            for size in sizes
        }

    def _captured_by_rows(self, function: Callable[..., Any]) -> CapturedByRows:
        """Return the function, captured for each number of rows (sequences) of its first tensor."""

        def is_logits(tensor: torch.Tensor) -> bool:
            return tensor.shape[1:] == (self.vocab_size,)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            return self._placed(tensor, 1 if is_logits(tensor) else None)

        def placed_results(_: int, *tensors: torch.Tensor) -> object:
            """Give results a fixed sharding, because the next program depends on it."""
            return tree_map_only(torch.Tensor, place, function(*tensors))

        return CapturedByRows(self._captured(placed_results, self.num_reqs_paddings), place)

    def load_model(self) -> None:
        """Load the model as vLLM's loaders do, after a check of its size."""
        loader = get_model_loader(self.load_config)
        is_streamed = self._streams_weights()
        # A single device may lack room for weights that several devices share.
        on_host = is_streamed or self._devices is not None
        device = torch.device("cpu") if on_host else self.device
        # vLLM caches the layers of earlier engines by a key that lacks some of their settings.
        rotary_embedding._ROPE_DICT.clear()
        if self.vllm_config.quant_config is not None:
            overrides.apply("quantized")
        with set_default_torch_dtype(self.dtype):
            with device:
                model = initialize_model(vllm_config=self.vllm_config)
            moe.check(model)
            if self.vllm_config.quant_config is not None:
                from vllm_xla_gpu import quantized  # which imports compressed_tensors

                quantized.check(model, self._count)
            # So far nothing has been allocated, because torch_xla and the host allocate memory on
            # first use.
            if self._devices is None:
                tensors = (*model.parameters(), *model.buffers())
                self.weights = sum(tensor.nbytes for tensor in tensors)
            else:
                self.weights = self._devices.weights_of_one(model)
            DeviceMemory.current(self.device).check_fits(self.weights)
            stream = (
                WeightStream(model, Placement(self.device, self._devices)) if is_streamed else None
            )
            if not on_host or not isinstance(loader, DummyModelLoader):
                loader.load_weights(model, self.model_config)
            elif stream is None:
                weights.random_writer()(model)
            else:
                stream.fill(weights.random_writer())
            if stream is not None:
                stream.finish()
            weights.process(model, self.dtype, set() if stream is None else stream.arranged)
        if self._peers is not None:
            self._peers.check_same(
                {"the model's weights": fingerprint(model.state_dict().values())},
                "Give all processes the same files of the model",
            )
        moe.divide(model, self._count)
        sent = {} if stream is None else stream.sent
        if is_streamed and self._devices is None:
            weights.place(
                model,
                lambda _, weight: sent[weight][0] if weight in sent else weight.to(self.device),
            )
        if self.lora_config is not None:
            model.embedding_modules = {}  # adapters have linear layers only
            model = self.load_lora_model(model, self.vllm_config, self.device)
            write_slots_whole(self._adapter_manager, self._devices)
        if self._devices is not None:
            self.weights = self._devices.weights_of_one(model)  # and of adapters
            self._devices.place_model(model, sent)
        torch_xla.sync(wait=True)
        self.model = model.eval()
        self.sampler = KeyedSampler()
        self._make_logits()
        torch_xla.sync(wait=True)

    def _streams_weights(self) -> bool:
        """Return whether weights are sent to the devices layer by layer."""
        if self._devices is None:  # which quantizes, and makes random weights
            is_plain = self.vllm_config.quant_config is None
            return is_plain and self.load_config.load_format != "dummy"
        return self._peers is None  # processes compare all weights on the host

    @property
    def _count(self) -> int:
        """The number of devices that share the model."""
        return 1 if self._devices is None else self._devices.count

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Return vLLM's spec, corrected for latent rows, which it counts twice."""
        specs = super().get_kv_cache_spec()
        if not self.model_config.use_mla:
            return specs
        return {name: MLAAttentionSpec(**dataclasses.asdict(s)) for name, s in specs.items()}

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> None:
        # vLLM makes the caches by torch.zeros on the default device, and moves them.
        with self.device:
            super().initialize_kv_cache(kv_cache_config)
        if self._devices is not None:
            # All heads share latent rows.
            dim = None if self.model_config.use_mla else 2
            for cache in self.kv_caches:
                self._devices.place(cache, dim)
        torch_xla.sync(wait=True)

    def _placed(self, tensor: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """Move a tensor to the devices, divided along `dim` if possible."""
        if self._devices is None:
            return tensor.to(self.device)
        return self._devices.place(tensor, dim)

    def _shape(self, num_tokens: int) -> BatchShape:
        num_seqs = min(num_tokens, self.max_num_reqs)
        num_checked = 0
        if self._drafter is not None:
            num_checked = min(num_tokens, num_seqs * (self._drafter.count + 1))
        max_q_len = 1 if num_tokens in self._decode_sizes else None
        pages = self.max_num_blocks_per_req
        return BatchShape(num_tokens, num_seqs, pages, num_checked, max_q_len)

    def _shape_for(self, new_tokens: np.ndarray) -> BatchShape:
        """Return the smallest shape with room for these numbers of tokens per sequence."""
        sizes = self.num_tokens_paddings
        first = 0 if new_tokens.max() == 1 else len(self._decode_sizes)
        return self._shape(sizes[bisect.bisect_left(sizes, int(new_tokens.sum()), lo=first)])

    def _make_logits(self) -> None:
        hidden = torch.zeros(1, self.hidden_size, dtype=self.dtype, device=self.device)
        logits = self._logits_of(hidden)  # only its shape is used
        # vLLM's name for the logits' dtype, for the programs that sample.
        self._hidden_states_dtype = logits.dtype
        for num_seqs in self.num_reqs_paddings:
            empty = torch.zeros(num_seqs, logits.shape[1], dtype=logits.dtype)
            self._logits[num_seqs] = self._placed(empty, dim=1)

    # The captured functions.

    def _received(self, packed: torch.Tensor) -> torch.Tensor:
        """Copy an argument outside of CUDA graphs, because its address differs in each step."""
        return ops.copy_outside_graphs(packed)

    def _sent(self, result: torch.Tensor) -> torch.Tensor:
        """Copy a result to a separate buffer, which the next step does not write to."""
        return self._placed(ops.copy_outside_graphs(result))

    def _run_model(
        self, num_tokens: int, packed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the model; store the last logits, the best tokens and the sampling parameters.

        Returns:
            The best tokens, [num_seqs, 1], and, if there may be drafts, the best tokens after the
            checked tokens.
        """
        shape = self._shape(num_tokens)
        batch = Batch.unpack(self._received(packed), shape)
        before = self._tokens[batch.previous.clamp(min=0), 0]
        input_ids = torch.where(batch.previous == KNOWN, batch.input_ids, before.int())
        hidden = self._hidden_of(batch, input_ids)
        wanted = torch.cat([batch.last_tokens, batch.checked])
        logits = self._logits_of(hidden[wanted])
        best = self._argmax(logits)[:, None]  # of all, in one exchange
        sizes = [shape.num_seqs, shape.num_checked]
        self._logits[shape.num_seqs].copy_(logits[: shape.num_seqs])
        self._sampling_params[: shape.num_seqs] = batch.params
        tokens, checked = best.split(sizes)
        return self._keep(tokens), self._sent(checked[:, 0]) if shape.num_checked else None

    def _hidden_of(self, batch: Batch, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the model's hidden states of a step, [num_tokens, hidden]."""
        if self.lora_config is not None:
            self._adapter_manager.punica_wrapper.slots = batch.adapters
        metadata = dict.fromkeys(self._layers, batch)
        with set_forward_context(metadata, self.vllm_config, num_tokens=len(input_ids)):
            return self.model(input_ids=input_ids, positions=batch.positions)

    def _keep(self, tokens: torch.Tensor) -> torch.Tensor:
        """Keep the tokens as those of the step, [num_seqs, 1], and return a copy."""
        self._tokens[: len(tokens)] = tokens
        return self._sent(tokens)

    def _keep_best(self, logits: torch.Tensor) -> torch.Tensor:
        return self._keep(self._argmax(logits)[:, None])

    def _argmax(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1) if self._devices is None else self._devices.argmax(logits)

    def _keep_sampled(self, logits: torch.Tensor) -> torch.Tensor:
        """Sample with the requests' parameters, and keep the tokens."""
        params = unpack_params(self._sampling_params[: len(logits)])
        # The sampler writes into float32 logits.
        return self._keep(self.sampler(logits.clone(), params).sampled_token_ids)

    @property
    def _adapter_manager(self) -> LoRAModelManager:
        return self.lora_manager._adapter_manager

    @property
    def _layers(self) -> dict[str, torch.nn.Module]:
        return self.vllm_config.compilation_config.static_forward_context

    def _start(self, num_tokens: int, packed: np.ndarray) -> StepResult:
        """Start a step, which also stores its results in self._logits and self._tokens."""
        return self._run[num_tokens](torch.from_numpy(packed).to(self.device))

    def _calls_beside_steps(self) -> Iterator[tuple[CapturedStep | CapturedByRows, Operands]]:
        """Yield the functions that a step may call after the model, with operands."""
        for num_seqs in self.num_reqs_paddings:
            logits = self._logits[num_seqs]
            tokens = self._placed(torch.zeros(num_seqs, 1, dtype=torch.int64))
            yield self._bias, (logits, torch.zeros(num_seqs, self.vocab_size))
            yield self._penalize, (logits, *penalty_operands(self.input_batch, num_seqs))
            yield self._best, (logits,)
            yield self._sampled, (logits,)
            yield self.gather_logprobs, (logits, tokens)
            masks = self.require_structured_out_cpu, self.grammar_bitmask_cpu
            required, mask = (tensor[:num_seqs].to(self.device) for tensor in masks)
            bits = self.structured_decode_arange.to(self.device)
            yield self.structured_decode, (required, mask, logits, bits)

    def _adapters(self, num_seqs: int) -> np.ndarray | int:
        """Return the slots of the requests' adapters; write adapters that are in no slot."""
        if self.lora_config is None:
            return NO_ADAPTER
        requests = self.input_batch.lora_id_to_lora_request
        if requests:
            # Sorted, so that all processes have the same order.
            self.lora_manager._apply_adapters([requests[name] for name in sorted(requests)])
        slots = {name: slot for slot, name in enumerate(self._adapter_manager.lora_index_to_id)}
        names = self.input_batch.request_lora_mapping[:num_seqs].tolist()
        return np.array([slots[name] if name else NO_ADAPTER for name in names])

    @torch.no_grad()
    def execute_model(
        self, scheduler_output: SchedulerOutput, intermediate_tensors: None = None
    ) -> StartedStep:
        """Start one step of vLLM's scheduler that has tokens to compute."""
        step = self._start_step(scheduler_output)
        tokens, checked = step.result
        tokens, logprobs = self._sample(scheduler_output, step.shape, step.ends, tokens)
        # A token in the middle of a prompt is meaningless.
        has_token = step.ends >= self.input_batch.num_tokens[: len(step.ends)]
        self._rows = {state.req_id: row for row, state in enumerate(step.requests)}
        self._verify_num_xla_graphs("execute_model")
        return StartedStep(
            batch=self.input_batch,
            states=self.requests,
            peers=self._peers,
            requests=step.requests,
            ends=step.ends.tolist(),
            has_token=has_token.tolist(),
            tokens=tokens,
            logprobs=logprobs,
            drafts=step.drafts,
            checked=checked,
        )

    def _start_step(self, scheduler_output: SchedulerOutput) -> ModelStep:
        """Start the model's part of a step."""
        self._update_states(scheduler_output)
        batch, num_seqs = self.input_batch, self.input_batch.num_reqs
        req_ids = batch.req_ids[:num_seqs]
        new_tokens = np.array([scheduler_output.num_scheduled_tokens[r] for r in req_ids])
        rows_before = np.array([self._rows.get(r, KNOWN) for r in req_ids])
        shape = self._shape_for(new_tokens)
        drafts = [scheduler_output.scheduled_spec_decode_tokens.get(r, []) for r in req_ids]
        for row, tokens in enumerate(drafts):
            if not tokens:
                continue
            begin = batch.num_tokens[row]
            batch.token_ids_cpu[row, begin : begin + len(tokens)] = tokens
        ends = batch.num_computed_tokens_cpu[:num_seqs] + new_tokens
        packed = pack(
            shape,
            batch,
            new_tokens,
            self.block_size,
            rows_before,
            self._adapters(num_seqs),
            np.array([len(tokens) for tokens in drafts]),
            None if batch.all_greedy else pack_params(batch, self._keys(ends)),
        )
        if self._peers is not None:
            self._peers.check_step(scheduler_output, packed)
        result = self._start(shape.num_tokens, packed)
        requests = [self.requests[r] for r in req_ids]
        return ModelStep(shape, requests, new_tokens, ends, drafts, result)

    def _sample(
        self,
        scheduler_output: SchedulerOutput,
        shape: BatchShape,
        ends: np.ndarray,
        tokens: torch.Tensor,
    ) -> tuple[torch.Tensor, LogprobsTensors | None]:
        """Replace the started step's best tokens by sampled ones for requests that want this."""
        logits = self._logits[shape.num_seqs]
        has_grammar = scheduler_output.grammar_bitmask is not None
        if has_grammar:
            # vLLM's code takes the request's index in the queue for the row of its mask.
            numbers = scheduler_output.structured_output_request_ids
            rows = {req_id: row for row, req_id in enumerate(sorted(numbers, key=numbers.get))}
            required, mask, bits = self.prepare_structured_decoding_input(
                logits, dataclasses.replace(scheduler_output, structured_output_request_ids=rows)
            )
            logits = self.structured_decode(required, mask, logits, bits)
        adjusted = logits
        bias = self._biases(shape.num_seqs, ends)
        if bias is not None:
            adjusted = self._bias(adjusted, bias)
        if not self.input_batch.no_penalties:
            adjusted = self._with_penalties(adjusted, shape.num_seqs)
        if not self.input_batch.all_greedy:
            tokens = self._sampled(adjusted)
        elif adjusted is not self._logits[shape.num_seqs]:
            tokens = self._best(adjusted)
        # vLLM's own max_num_logprobs is 0 if requests ask only for the chosen token's.
        if not self.input_batch.num_logprobs:
            return tokens, None
        return tokens, self.gather_logprobs(logits, tokens)

    def apply_grammar_bitmask(
        self, logits: torch.Tensor, grammar_bitmask: torch.Tensor, arange: torch.Tensor
    ) -> torch.Tensor:
        """Mask all rows at once; vLLM's loop over 256 rows takes five seconds to compile."""
        forbidden = (torch.bitwise_right_shift(grammar_bitmask[:, :, None], arange) & 1) == 0
        return logits.masked_fill(forbidden.flatten(1)[:, : self.vocab_size], -float("inf"))

    def _with_penalties(self, logits: torch.Tensor, num_seqs: int) -> torch.Tensor:
        operands = penalty_operands(self.input_batch, num_seqs)
        return self._penalize(logits, *(operand.to(self.device) for operand in operands))

    def _biases(self, num_seqs: int, ends: np.ndarray) -> torch.Tensor | None:
        """Return float32 [num_seqs, vocabulary] or None; `ends` are the next tokens' positions."""
        batch = self.input_batch
        params = [self.requests[r].sampling_params for r in batch.req_ids[: len(ends)]]
        if not any(map(has_biases, params)):
            return None
        bias = np.zeros((num_seqs, self.vocab_size), dtype=np.float32)
        for row, (wanted, end) in enumerate(zip(params, ends.tolist(), strict=True)):
            begin = batch.num_prompt_tokens[row]
            if has_biases(wanted) and end >= begin:
                write_bias(bias[row], wanted, end - begin, batch.token_ids_cpu[row, begin:end])
        return torch.from_numpy(bias)

    def _keys(self, ends: np.ndarray) -> np.ndarray:
        """Return uint32 [len(ends), 2]; `ends` are the positions of the tokens to be sampled."""
        keys = np.empty((len(ends), 2), dtype=np.uint32)
        for row, end in enumerate(ends.tolist()):
            seed = self.requests[self.input_batch.req_ids[row]].sampling_params.seed
            keys[row] = make_key(self._seeds.getrandbits(64) if seed is None else seed, end)
        return keys
