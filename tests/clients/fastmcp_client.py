"""FastMCP's own client."""
import asyncio
import os

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport


async def main():
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    async with Client(StreamableHttpTransport(os.environ["MCP_URL"], headers=headers)) as client:
        print([tool.name for tool in await client.list_tools()])
        arguments = {"region": "eu", "q": os.environ["CLIENT_NAME"]}
        result = await client.call_tool("test_x_mcp_header", arguments)
        print(result.content[0].text)


asyncio.run(main())
