"""The Python SDK, line 1."""
import asyncio
import os

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main():
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=30) as http,
        streamable_http_client(os.environ["MCP_URL"], http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        hello = await session.initialize()
        print(f"protocol={hello.protocolVersion}")
        print([tool.name for tool in (await session.list_tools()).tools])
        arguments = {"region": "eu", "q": os.environ["CLIENT_NAME"]}
        result = await session.call_tool("test_x_mcp_header", arguments)
        print(result.content[0].text)


asyncio.run(main())
