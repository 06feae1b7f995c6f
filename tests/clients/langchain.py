"""LangChain's adapters: the tools of an MCP endpoint as tools of an agent, and each of MCP_CALLS (`[[name, arguments], …]`)."""
import asyncio
import json
import os

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main():
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    endpoint = {"transport": "streamable_http", "url": os.environ["MCP_URL"], "headers": headers}
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"project": endpoint}).get_tools()}
    print(json.dumps(sorted(tools)))
    for name, arguments in json.loads(os.environ["MCP_CALLS"]):
        print(name, await tools[name].ainvoke(arguments))


asyncio.run(main())
