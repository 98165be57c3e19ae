"""An asyncio agent that runs two tools at once: one in a thread, one in a task.

python -m examples.asyncio_tools.agent Paris
"""

import asyncio
import sys
import time

from sessionary.producers import AsyncSession, AsyncSessionClient, current_session, traced


@traced("tool")
def read_timetable(city: str) -> str:
    """Read a file or a database. The call blocks, so it runs in a thread."""
    time.sleep(0.05)
    session = current_session()  # the thread has inherited it
    assert session is not None
    return f"{city} 09:14, for session {session.session_id[:8]}"


@traced("tool")
async def fetch_weather(city: str) -> str:
    """Stand in for a request to a service."""
    await asyncio.sleep(0.05)
    if city == "Atlantis":
        raise LookupError(city)  # reported with the call, and raised
    return f"sunny in {city}"


async def plan_trip(session: AsyncSession, city: str) -> str:
    """Call both tools at once, then ask the model for the plan."""
    async with session.run("trip", input={"city": city}) as run:  # events of the block belong to the run
        async with asyncio.TaskGroup() as tools:
            train = tools.create_task(asyncio.to_thread(read_timetable, city))
            weather = tools.create_task(fetch_weather(city))
        async with session.llm("large") as call:
            await asyncio.sleep(0.05)  # stands in for the model
            call.tokens_in, call.tokens_out = 200, 40
        run.result = trip = f"{train.result()}; {weather.result()}"
        return trip


async def main(city: str) -> None:
    """Plan one trip in a new session."""
    async with (
        AsyncSessionClient(tenant_id="acme", service_id="travel", agent_id="planner") as client,
        client.session(user_id="ada", state={"city": city}) as session,
    ):
        print("session", session.session_id)
        print(await plan_trip(session, city))
        await session.complete("planned")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
