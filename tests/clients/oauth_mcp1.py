"""The Python SDK, from a 401 to a tool's answer: discovery, registration, sign-in, token."""
import asyncio
import os
import pathlib
import urllib.parse

import httpx
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

REDIRECT = "http://127.0.0.1:1/callback"
BROWSE = str(pathlib.Path(__file__).with_name("browse.mjs"))


class Memory:
    def __init__(self):
        self.tokens = self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def main():
    back = {}

    async def redirect(url):
        browser = await asyncio.create_subprocess_exec(
            os.environ["node"], BROWSE, url, REDIRECT, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await browser.communicate()
        back.update(urllib.parse.parse_qsl(urllib.parse.urlsplit(said.decode().strip()).query))

    async def callback():
        return back["code"], back.get("state")

    metadata = OAuthClientMetadata(
        client_name=os.environ["CLIENT_NAME"],
        redirect_uris=[REDIRECT],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    url = os.environ["MCP_URL"]
    auth = OAuthClientProvider(url, metadata, Memory(), redirect, callback)
    async with (
        httpx.AsyncClient(auth=auth, timeout=30) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        assert back, "let in without a sign-in"
        print([tool.name for tool in (await session.list_tools()).tools])
        arguments = {"region": "eu", "q": os.environ["CLIENT_NAME"]}
        result = await session.call_tool("test_x_mcp_header", arguments)
        print(result.content[0].text)


asyncio.run(main())
