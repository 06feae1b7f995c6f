"""The Python SDK, line 1, with a server that it starts as a program."""
import json
import os
import time

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client

COMMAND = json.loads(os.environ["MCP_COMMAND"])
CALLS = int(os.environ["MCP_CALLS"])


async def answer(_context, params):
    return types.ElicitResult(action="accept", content={"response": f"to {params.message}"})


async def cancelled(session):
    """A call that is given up while it runs."""
    started = anyio.Event()

    async def progress(*_):
        started.set()

    async with anyio.create_task_group() as group:
        request = session._request_id
        group.start_soon(lambda: session.call_tool("test_slow", {"ms": 60_000}, progress_callback=progress))
        with anyio.fail_after(20):
            await started.wait()
        params = types.CancelledNotificationParams(requestId=request, reason="enough")
        notification = types.CancelledNotification(method="notifications/cancelled", params=params)
        await session.send_notification(types.ClientNotification(notification))
        group.cancel_scope.cancel()


async def main():
    parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ))
    async with stdio_client(parameters) as (read, write), ClientSession(read, write, elicitation_callback=answer) as session:
        hello = await session.initialize()
        print(f"protocol={hello.protocolVersion}")
        print(f"tools={len((await session.list_tools()).tools)}")
        told = []

        async def progress(done, total, _message):
            told.append((done, total))

        await session.call_tool("test_tool_with_progress", {}, progress_callback=progress)
        print(f"progress={len(told)}")
        result = await session.call_tool("test_elicitation", {"message": "who"})
        print(f"elicitation={result.content[0].text}")
        await cancelled(session)
        await session.send_ping()
        print("cancelled=asked")
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            await session.call_tool("test_simple_text", {})
            times.append(time.perf_counter() - began)
        print(f"p50_us={sorted(times)[len(times) // 2] * 1e6:.0f}")


anyio.run(main)
