"""Serve a saved model with vLLM: offline, and by its server."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import fine_tune
import model as smollm2
import openai
import speak
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Each number of tokens and sequences is a program: low limits shorten the start.
_LIMITS = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 32}
# On a GPU, the engine in this process keeps its memory while the servers run.
_LIMITS |= {"gpu_memory_utilization": 0.4}
# The adapters' names in requests to the server.
ADAPTED = "with-adapters"

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def offline(folder: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Return the greedy tokens after each prompt, ignoring the end of a text."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder), **_LIMITS, seed=0)
    answers = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True),
        use_tqdm=False,
    )
    return [list(answer.outputs[0].token_ids) for answer in answers]


def served(
    folder: Path, questions: tuple[str, ...], count: int, adapters: Path | None = None
) -> list[str]:
    """Return the answers of `vllm serve` to concurrent chats, of the adapters if there are any."""
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in _LIMITS.items()]
    command += ["--host=127.0.0.1", f"--port={(port := _free_port())}", "--served-model-name=model"]
    if adapters is not None:
        command += ["--enable-lora", "--max-lora-rank=16"]
        command += ["--lora-modules", f"{ADAPTED}={adapters}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        name = "model" if adapters is None else ADAPTED
        return asyncio.run(_ask_all(f"http://127.0.0.1:{port}/v1", name, questions, count, server))
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def _ask_all(
    address: str, model: str, questions: tuple[str, ...], count: int, server: subprocess.Popen
) -> list[str]:
    async with openai.AsyncOpenAI(base_url=address, api_key="none") as client:
        while True:
            try:
                await client.models.list()
                break
            except openai.APIConnectionError:
                if server.poll() is not None:
                    sys.exit("the server has exited: start it by hand to see why")
                await asyncio.sleep(0.5)
        return await asyncio.gather(
            *(_ask(client, model, question, count) for question in questions)
        )


async def _ask(client: openai.AsyncOpenAI, model: str, question: str, count: int) -> str:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=count,
        temperature=0,
    )
    return answer.choices[0].message.content


def main() -> None:
    parser = smollm2.parser(__doc__)
    parser.add_argument("folder", type=Path, help="that fine_tune.py has written to")
    options = parser.parse_args()
    folder, count = options.folder, options.tokens
    questions = smollm2.QUESTIONS[: options.questions]
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    prompts = smollm2.prompts(tokenizer, questions)
    tokens = torch.tensor(offline(folder / "base", prompts, count))
    print("the model, offline")
    smollm2.show(questions, smollm2.answers(tokenizer, tokens))
    if options.compare:
        model = AutoModelForCausalLM.from_pretrained(folder / "base").eval()
        inputs = smollm2.chat(tokenizer, questions)
        smollm2.compare("offline", tokens, speak.with_generate(model, inputs, count))
    lessons = tuple(question for question, _ in fine_tune.LESSONS[:3])
    for name, base, adapters in (
        ("the tuned model", folder / "tuned", None),
        ("the model with adapters", folder / "base", folder / "adapters"),
    ):
        answers = served(base, lessons, count, adapters)
        print(f"{name}, by the server")
        smollm2.show(lessons, answers)


if __name__ == "__main__":
    main()
