"""Very many servers, connections and streams: what idleness costs, and what a call notices of it."""
import http.client
import json
import socket
import statistics
import time

from rig import CPU, Daemon, load, pin
from scale.memory import rss_kib

IDLE_SECS, LISTS = 30, 15
CONNECTIONS, STREAMS = 10_000, 1_000
PROTOCOL = "2025-06-18"


def measure(stdiod, arguments, report):
    few, many = Daemon(stdiod), None
    try:
        many = Daemon(stdiod)
        few.register("s-0", "none")
        many.register_all([f"s-{n}" for n in range(arguments.servers)], "none")
        idle(many, arguments, report)
        for daemon in (few, many):
            pin(daemon.process.pid)
        rows = [calls("that many servers", few, many, arguments)]
        held = []
        try:
            hold_connections(many, held)
            hold_streams(many, held, arguments.servers)
            rows.append(calls(f"and {CONNECTIONS:,} idle connections and {STREAMS:,} event streams", few, many, arguments))
            alive(held)
        finally:
            for connection in held:
                connection.close()
        columns = ["a call on a daemon with", "p50 µs", "p50 µs with one server", "×", "p99 µs", "with one", "RSS MiB"]
        report.table(f"Calls beside {arguments.servers:,} servers", columns, rows)
        for name, ratio in zip(("p50 of a call to that with one server", "the same with idle connections and streams"), (row[3] for row in rows)):
            report.verdict(name, float(ratio), 1.2, "×")
    finally:
        few.stop()
        if many:
            many.stop()


def cpu_secs(pid):
    """User and system time of all threads, by the kernel's own clock of a process."""
    return time.clock_gettime((~pid << 3) | 2)


def idle(daemon, arguments, report):
    # What follows their starts is over: lists of tools, first looks at their use.
    time.sleep(10)
    before, began = cpu_secs(daemon.process.pid), time.monotonic()
    time.sleep(IDLE_SECS)
    percent = 100 * (cpu_secs(daemon.process.pid) - before) / (time.monotonic() - began)
    took = []
    client = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    for _ in range(LISTS):
        began = time.monotonic()
        client.request("GET", "/api/v1/mcp/servers", headers={"Authorization": f"Bearer {daemon.token}"})
        text = client.getresponse().read()
        took.append(1000 * (time.monotonic() - began))
        if len(json.loads(text)) != arguments.servers:
            raise SystemExit(f"the list is {text[:300]}…")
    client.close()
    rows = [[f"{arguments.servers:,}", f"{percent:.2f}", f"{statistics.median(took):.1f}", f"{max(took):.1f}", f"{len(text) / 1024:,.0f}"]]
    report.table("Many servers, idle", ["servers", f"CPU % over {IDLE_SECS} s", "list ms, median", "list ms, slowest", "list KiB"], rows)
    report.verdict("CPU when idle, heartbeats on", percent, 1, " % of a core")
    report.verdict("GET list", statistics.median(took), 20, " ms")


def calls(title, few, many, arguments):
    turns = []
    for _ in range(arguments.rounds):
        turns.append((load(few, "s-0", secs=1, on=CPU), load(many, f"s-{arguments.servers // 2}", secs=1, on=CPU)))
    ratio = statistics.median(of_many["p50"] / of_few["p50"] for of_few, of_many in turns)
    p50, p50_few, p99, p99_few = (statistics.median(turn[side][key] for turn in turns) for key in ("p50", "p99") for side in (1, 0))
    rss = rss_kib(many.process.pid)["VmRSS"] / 1024
    return [title, f"{p50:.1f}", f"{p50_few:.1f}", f"{ratio:.2f}", f"{p99:.0f}", f"{p99_few:.0f}", f"{rss:.1f}"]


def connect(daemon, request):
    connection = socket.create_connection(("127.0.0.1", daemon.port), timeout=30)
    connection.sendall(request)
    return connection


def head_of(connection):
    """The answer as far as it goes in one piece; its head and more is sent at once."""
    said = b""
    while b"\r\n\r\n" not in said:
        more = connection.recv(65_536)
        if not more:
            raise SystemExit(f"closed after {said[:300]}")
        said += more
    return said


def hold_connections(daemon, held):
    """Each has shown its token, and keeps its connection; those that show none are few at a time."""
    asked = f"GET /api/v1/mcp/servers/s-0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
    for _ in range(CONNECTIONS):
        held.append(connect(daemon, asked))
        if not (said := head_of(held[-1])).startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"connection {len(held)}: {said[:300]}")


def hold_streams(daemon, held, servers):
    """Each is the stream of a session of its own."""
    common = f"Host: localhost\r\nAuthorization: Bearer {daemon.token}\r\nAccept: application/json, text/event-stream\r\n"
    about = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "bench-scale", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
    for n in range(STREAMS):
        path = f"/mcp/s-{n % servers}"
        asked = f"POST {path} HTTP/1.1\r\n{common}Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        with connect(daemon, asked.encode()) as connection:
            said = head_of(connection).decode()
        session = next((line.split(":")[1].strip() for line in said.split("\r\n") if line.lower().startswith("mcp-session-id:")), None)
        if session is None:
            raise SystemExit(f"session {n}: {said[:300]}")
        held.append(connect(daemon, f"GET {path} HTTP/1.1\r\n{common}Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {PROTOCOL}\r\n\r\n".encode()))
        if "text/event-stream" not in (said := head_of(held[-1]).decode()):
            raise SystemExit(f"stream {n}: {said[:300]}")


def alive(held):
    """Nobody was dropped to make room."""
    for connection in held:
        connection.setblocking(False)
        try:
            while connection.recv(65_536):
                pass
            raise SystemExit("a connection that was held has been closed")
        except BlockingIOError:
            pass
