"""End incomplete requests with an error when the engine stops.

In vLLM they wait forever, and with them `vllm serve`, which waits for their connections to close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.v1.engine.exceptions import EngineDeadError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


def end_requests(llm: AsyncLLM, original: Callable[[AsyncLLM], None]) -> None:
    """End the requests when the user ends the server; `original` is vLLM's function."""
    original(llm)
    if processor := getattr(llm, "output_processor", None):  # none if the engine did not start
        error = EngineDeadError()
        error.args = ("the engine was shut down before the answer was complete",)
        processor.propagate_error(error)
