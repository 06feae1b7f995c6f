"""Hostile servers: each says as much as it can, in one of four ways. The program is the fixture of the end-to-end tests."""
import json
import os
import socket
import threading
import time

from rig import ROOT

LOUD = os.path.join(ROOT, "tests/fixtures/loud.py")
KINDS = ("noise", "pings", "stderr", "notifications")
FLOOD_SECS = 30


class Loud:
    """One hostile server on a daemon, and a client who hears its notifications."""

    def __init__(self, daemon, kind):
        self.daemon, self.kind, self.name = daemon, kind, f"loud-{kind}"
        body = {"name": self.name, "rootfs": "host", "provider": "none", "cmd": ["/usr/bin/python3", LOUD]}
        status, text = daemon.ask("POST", "/api/v1/mcp/servers", body)
        if status not in (200, 201):
            raise SystemExit(f"registering {self.name}: {status} {text.decode()}")

    def start(self):
        self.listener = Listener(self.daemon, self.name) if self.kind == "notifications" else None
        params = {"name": "flood", "arguments": {"kind": self.kind, "secs": FLOOD_SECS}}
        path = f"/api/v1/mcp/servers/{self.name}/call"
        status, text = self.daemon.ask("POST", path, {"method": "tools/call", "params": params})
        if status != 200:
            raise SystemExit(f"{self.name} does not begin: {status} {text.decode()}")

    def stop(self):
        """Whatever it is at: it is not to be heard in what is measured next."""
        if self.listener:
            self.listener.close()
        status, text = self.daemon.ask("POST", f"/api/v1/mcp/servers/{self.name}/restart")
        if status != 200:
            raise SystemExit(f"restarting {self.name}: {status} {text.decode()}")

    def end(self):
        self.daemon.ask("DELETE", f"/api/v1/mcp/servers/{self.name}")


class Listener:
    """A session with an open stream, whose client reads all that comes."""

    def __init__(self, daemon, server):
        self.daemon, self.server, self.session = daemon, server, None
        info = {"name": "bench", "version": "1"}
        self.post({"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}})
        self.post({"id": 1, "method": "logging/setLevel", "params": {"level": "debug"}})
        self.stream = self.request("GET", "")
        threading.Thread(target=self.drain, daemon=True).start()

    def request(self, method, body):
        connection = socket.create_connection(("127.0.0.1", self.daemon.port), timeout=60)
        head = f"{method} /mcp/{self.server} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.daemon.token}\r\n"
        head += "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\nConnection: close\r\n"
        if self.session:
            head += f"Mcp-Session-Id: {self.session}\r\nMCP-Protocol-Version: 2025-06-18\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return connection

    def post(self, message):
        with self.request("POST", json.dumps({"jsonrpc": "2.0", **message})) as connection:
            said = b""
            while more := connection.recv(65_536):
                said += more
        if not said.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{message['method']}: {said[:300]}")
        for line in said.split(b"\r\n\r\n")[0].decode().splitlines():
            name, _, value = line.partition(":")
            if name.lower() == "mcp-session-id":
                self.session = value.strip()

    def drain(self):
        try:
            while self.stream.recv(1 << 20):
                time.sleep(0.01)
        except OSError:
            pass

    def close(self):
        self.stream.close()
