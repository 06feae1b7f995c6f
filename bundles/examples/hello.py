#!/usr/bin/env python3
"""A small MCP server on stdio: one JSON-RPC message per line in, one per line out, logs on stderr.

`scripts/quickstart` hosts it; copy it to start one of your own. Nothing but the standard library."""
import json
import os
import platform
import sys

TOOLS = [
    {
        "name": "greet",
        "description": "Greets somebody by name",
        "inputSchema": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "Whom to greet"}},
            "required": ["name"],
        },
    },
    {
        "name": "where_am_i",
        "description": "Tells what the world looks like from inside the sandbox",
        "inputSchema": {"type": "object", "properties": {}},
    },
]


class Refusal(Exception):
    """An answer that is a JSON-RPC error."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def greet(arguments):
    name = arguments.get("name")
    if not isinstance(name, str) or not name:
        raise Refusal(-32602, "greet needs a name")
    return f"Hello, {name}!"


def where_am_i(_arguments):
    return "\n".join(
        [
            f"kernel     {platform.system()} {platform.release()}",
            f"process    pid {os.getpid()}, uid {os.getuid()}",
            f"network    {', '.join(sorted(os.listdir('/sys/class/net'))) if os.path.isdir('/sys/class/net') else 'none'}",
            f"/usr       {'writable' if os.access('/usr', os.W_OK) else 'read-only'}",
        ]
    )


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hello", "version": "1.0.0"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        tool = {"greet": greet, "where_am_i": where_am_i}.get(params.get("name"))
        if tool is None:
            raise Refusal(-32602, f"Unknown tool: {params.get('name')}")
        return {"content": [{"type": "text", "text": tool(params.get("arguments") or {})}]}
    raise Refusal(-32601, f"Method not found: {method}")


def main():
    print("hello.py: ready", file=sys.stderr)
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError as error:
            print(f"hello.py: not JSON: {error}", file=sys.stderr)
            continue
        if "id" not in message or "method" not in message:
            continue  # a notification, or an answer: nothing to say
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params") or {})
        except Refusal as refusal:
            reply["error"] = {"code": refusal.code, "message": str(refusal)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
