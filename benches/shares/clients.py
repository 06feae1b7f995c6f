"""Hostile clients: each takes as much as it is given, in one of four ways. They come from another address of the loopback
network than those who measure, as they would in life, and with little right to this machine's CPUs, as in life they would
have none at all."""
import json
import multiprocessing
import os
import resource
import select
import socket
import time

ADDRESS = "127.0.0.9"
KINDS = ("connections", "slow-readers", "bodies", "sessions")
READERS, LARGE = 64, 15 << 20
HELD, BODY = 4_000, 8 << 20


class Hostile:
    def __init__(self, daemon, kind):
        self.daemon, self.kind = daemon, kind
        # A token of its own, so that it takes what is its owner's and not the operator's.
        _, text = daemon.ask("POST", "/api/v1/tokens", {"name": f"hostile-{kind}", "scopes": ["mcp:call"]})
        self.token = json.loads(text)["token"]

    def start(self):
        self.over = multiprocessing.Event()
        work = {"connections": connect, "slow-readers": read_slowly, "bodies": send_bodies, "sessions": open_sessions}[self.kind]
        self.process = multiprocessing.Process(target=run, args=(work, self.daemon.port, self.token, self.over), daemon=True)
        self.process.start()

    def stop(self):
        self.over.set()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        # The daemon sees them leave.
        time.sleep(0.5)

    def end(self):
        self.daemon.ask("DELETE", f"/api/v1/tokens/hostile-{self.kind}")


def run(work, port, token, over):
    os.nice(19)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    work(port, token, over)


def open_socket(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(ADDRESS, 0))


def connect(port, token, over):
    """As many connections as it is given, and new ones for those that it loses."""
    held = []
    while not over.is_set():
        try:
            held.append(open_socket(port))
        except OSError:
            time.sleep(0.001)
        if len(held) > HELD:
            for connection in held[: HELD // 2]:
                connection.close()
            del held[: HELD // 2]


def read_slowly(port, token, over):
    """Each asks for a large answer and takes a little of it now and then."""
    params = {"name": "echo", "arguments": {"size": LARGE}}
    request = post("/api/v1/mcp/servers/large/call", token, json.dumps({"method": "tools/call", "params": params}))
    readers = []
    while not over.is_set():
        while len(readers) < READERS:
            try:
                reader = open_socket(port)
                reader.sendall(request)
                reader.setblocking(False)
                readers.append(reader)
            except OSError:
                break
        for reader in list(readers):
            try:
                if not reader.recv(1024):
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            except OSError:
                reader.close()
                readers.remove(reader)
        over.wait(0.05)


def send_bodies(port, token, over):
    """Large bodies without a token, each but for its last two bytes, again and again."""
    body, senders, left = b"x" * (BODY - 2), {}, {}
    head = f"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n".encode()
    began = time.monotonic()
    while not over.is_set():
        while len(senders) < READERS:
            try:
                sender = open_socket(port)
                sender.sendall(head)
                sender.setblocking(False)
                senders[sender.fileno()], left[sender.fileno()] = sender, len(body)
            except OSError:
                break
        wanting = [sender for fd, sender in senders.items() if left[fd] > 0]
        _, writable, _ = select.select([], wanting, [], 0.05)
        for sender in writable:
            fd = sender.fileno()
            try:
                left[fd] -= sender.send(memoryview(body)[: min(left[fd], 1 << 18)])
            except BlockingIOError:
                pass
            except OSError:
                forget(senders, left, fd)
        # All are withheld: half of them begin anew, the others stay.
        if not wanting and time.monotonic() - began > 1:
            began = time.monotonic()
            for fd in list(senders)[: READERS // 2]:
                forget(senders, left, fd)


def forget(senders, left, fd):
    senders.pop(fd).close()
    del left[fd]


def open_sessions(port, token, over):
    """Sessions, and a stream for each of them."""
    info = {"name": "hostile", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    hello = post("/mcp/quick", token, json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
    streams, connection = [], None
    while not over.is_set():
        try:
            connection = connection or open_socket(port)
            connection.sendall(hello)
            said = connection.recv(65_536)
            session = next((line.split(b":")[1].strip() for line in said.split(b"\r\n") if line.lower().startswith(b"mcp-session-id")), None)
            if session is None:
                connection.close()
                connection = None
                continue
            stream = open_socket(port)
            head = f"GET /mcp/quick HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nAccept: text/event-stream\r\n"
            stream.sendall(head.encode() + b"Mcp-Session-Id: " + session + b"\r\n\r\n")
            streams.append(stream)
        except OSError:
            connection = None
            time.sleep(0.001)
        if len(streams) > HELD:
            for stream in streams[: HELD // 2]:
                stream.close()
            del streams[: HELD // 2]


def post(path, token, body):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    return f"{head}Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
