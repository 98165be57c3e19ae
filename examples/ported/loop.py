"""The model's loop with tools, ported: a process that goes on books nothing twice.

python -m examples.ported.loop Paris
"""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sessionary.producers import AsyncSession, AsyncSessionClient, tool


@dataclass
class Usage:
    """The tokens of one answer."""

    input_tokens: int
    output_tokens: int


@dataclass
class ModelResponse:
    """One answer of the model: a text, or the tools that it wants to be called."""

    text: str
    tool_calls: list[dict[str, Any]]
    usage: Usage


@tool(effect="read")
async def get_weather(city: str) -> str:
    """Look up the weather."""
    await asyncio.sleep(0.05)
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"{city}: sunny"


@tool(effect="write", deadline=30)
async def book_hotel(city: str, nights: int) -> dict[str, Any]:
    """Book a hotel, which costs money."""
    await asyncio.sleep(0.1)
    return {"city": city, "nights": nights, "booking": f"B-{random.randrange(10**6)}"}


@dataclass
class Agent:
    """A model with instructions and tools."""

    name: str
    instructions: str
    model: str
    tools: list[Callable[..., Awaitable[Any]]] = field(default_factory=list[Callable[..., Awaitable[Any]]])


async def call_model(messages: list[dict[str, Any]], city: str) -> ModelResponse:
    """Stand in for a model: it asks for the weather, then for a booking, then answers."""
    await asyncio.sleep(0.05)
    done = [message["name"] for message in messages if message["role"] == "tool"]
    tokens = sum(len(str(message["content"])) for message in messages) // 4
    if "get_weather" not in done:
        return ModelResponse("", [{"id": "c1", "name": "get_weather", "arguments": {"city": city}}], Usage(tokens, 12))
    if "book_hotel" not in done:
        wanted = {"id": "c2", "name": "book_hotel", "arguments": {"city": city, "nights": 2}}
        return ModelResponse("", [wanted], Usage(tokens, 15))
    return ModelResponse(f"Booked a hotel in {city}: {messages[-1]['content']}", [], Usage(tokens, 9))


async def run(session: AsyncSession, agent: Agent, text: str, city: str, max_turns: int = 8) -> str:
    """Ask the model, and call the tools that it wants, until it answers."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": agent.instructions},
        {"role": "user", "content": text},
    ]
    tools = {tool.__name__: tool for tool in agent.tools}
    for _ in range(max_turns):
        async with session.llm(agent.model) as call:
            response = await call_model(messages, city)
            call.tokens_in, call.tokens_out = response.usage.input_tokens, response.usage.output_tokens
        if not response.tool_calls:
            return response.text

        async def call_tool(call: dict[str, Any]) -> dict[str, Any]:
            try:
                result = await tools[call["name"]](**call["arguments"])
            except LookupError as error:
                result = {"error": str(error)}
            return {"role": "tool", "name": call["name"], "content": json.dumps(result), "tool_call_id": call["id"]}

        messages += await asyncio.gather(*(call_tool(call) for call in response.tool_calls))
    raise RuntimeError(f"no answer after {max_turns} turns")


async def main(city: str) -> None:
    """Book one trip."""
    agent = Agent("travel", "You book trips.", "gpt-large", [get_weather, book_hotel])
    client = AsyncSessionClient(tenant_id="acme", service_id="travel", agent_id=agent.name)
    async with client, client.open(f"trip to {city}", user_id="ada", resume=True) as session:
        print(await run(session, agent, f"Book me a hotel in {city}", city))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
