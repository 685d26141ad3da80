"""When the engine stops, incomplete requests end with an error.

In vLLM they wait for ever, and with them `vllm serve`, which waits for their connections to close.
"""

from __future__ import annotations

import asyncio

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

_end_server, _end_client = AsyncLLM.shutdown, AsyncMPClient.shutdown


def _shutdown(llm: AsyncLLM) -> None:
    """The user ends the server."""
    _end_server(llm)
    if processor := getattr(llm, "output_processor", None):  # none if the engine did not start
        error = EngineDeadError()
        error.args = ("the engine was shut down before the answer was complete",)
        processor.propagate_error(error)


def _shutdown_client(client: AsyncMPClient) -> None:
    """Called by vLLM in a thread that watches the engine's process, if that ends by itself.

    The client's sockets can be closed in the thread of its event loop only.
    """
    reader = client.resources.output_queue_task
    loop = reader.get_loop() if reader else None
    if loop and loop.is_running() and not _is_running_here(loop):
        loop.call_soon_threadsafe(_end_client, client)
    else:
        _end_client(client)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


AsyncLLM.shutdown, AsyncMPClient.shutdown = _shutdown, _shutdown_client
