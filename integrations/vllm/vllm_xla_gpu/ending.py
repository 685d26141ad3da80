"""When the engine stops, incomplete requests end with an error.

In vLLM they wait for ever, and with them `vllm serve`, which waits for their connections to close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.v1.engine.exceptions import EngineDeadError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient


def shutdown(llm: AsyncLLM, original: Callable[[AsyncLLM], None]) -> None:
    """The user ends the server; `original` is vLLM's function."""
    original(llm)
    if processor := getattr(llm, "output_processor", None):  # none if the engine did not start
        error = EngineDeadError()
        error.args = ("the engine was shut down before the answer was complete",)
        processor.propagate_error(error)


def shutdown_client(client: AsyncMPClient, original: Callable[[AsyncMPClient], None]) -> None:
    """Called by vLLM in a thread that watches the engine's process, if that ends by itself.

    The client's sockets can be closed in the thread of its event loop only.
    """
    reader = client.resources.output_queue_task
    loop = reader.get_loop() if reader else None
    if loop and loop.is_running() and not _is_running_here(loop):
        loop.call_soon_threadsafe(original, client)
    else:
        original(client)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
