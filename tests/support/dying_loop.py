"""The ported loop in a process that dies after it has booked."""

import asyncio
import os
import signal
import sys
from typing import Any

from examples.ported import loop

_answer = loop.call_model


async def _die_at_the_end(messages: list[dict[str, Any]], city: str) -> loop.ModelResponse:
    response = await _answer(messages, city)
    if not response.tool_calls:
        os.kill(os.getpid(), signal.SIGKILL)
    return response


loop.call_model = _die_at_the_end
asyncio.run(loop.main(sys.argv[1]))
