"""The Python SDK, line 2. Argument: how it connects (`legacy`, `auto`, or a version without sessions)."""
import asyncio
import os
import sys

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client


async def main():
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(os.environ["MCP_URL"], http_client=http)
        async with Client(transport, mode=sys.argv[1]) as client:
            print(f"protocol={client.protocol_version}")
            print([tool.name for tool in (await client.list_tools()).tools])
            arguments = {"region": "eu", "q": os.environ["CLIENT_NAME"]}
            result = await client.call_tool("test_x_mcp_header", arguments)
            print(result.content[0].text)


asyncio.run(main())
