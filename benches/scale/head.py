"""Head-of-line blocking: what a server's callers notice of two bad neighbours."""
import json
import multiprocessing
import select
import socket
import statistics
import time

from rig import CPU, Daemon, load, pin

# Calls of this server are never answered; each of its clients makes the next when the last has timed out.
NEVER_MS, TIMEOUT_MS, TIMING_OUT = 3_600_000, 100, 4
MIB = 1 << 20


def measure(stdiod, arguments, report):
    """The neighbours are also put into another daemon: what a call notices of them there is the machine's doing, and only
    what it notices beyond that is the loop's that they share."""
    near, far = Daemon(stdiod), None
    try:
        far = Daemon(stdiod)
        for daemon in (near, far):
            for name, more in (("quick", {}), ("large", {}), ("silent", {"max_in_flight": TIMING_OUT})):
                daemon.register(name, "none", **more)
        rows, ratios = [], {}
        for title, cpu in (("all CPUs", None), ("one CPU for everything", CPU)):
            if cpu is not None:
                pin(near.process.pid)
                pin(far.process.pid)
            turns = [turn(near, far, cpu) for _ in range(arguments.rounds)]
            cells = [statistics.median(found[side][key] for found in turns) for key in ("p50", "p99") for side in ("alone", "far", "near")]
            ratios[title] = [statistics.median(found["near"]["p99"] / found[side]["p99"] for found in turns) for side in ("alone", "far")]
            noise = [sum(found["near"][key] for found in turns) for key in ("large", "timeouts")]
            rows.append([title, *(f"{cell:.0f}" for cell in cells), *(f"{ratio:.2f}" for ratio in ratios[title]), *(f"{count:,}" for count in noise)])
        columns = ["the machine", "p50 µs alone", "neighbours elsewhere", "beside them", "p99 µs alone", "neighbours elsewhere", "beside them"]
        columns += ["p99 × alone", "× elsewhere", "1 MiB results meanwhile", "timeouts meanwhile"]
        report.table("Head of line", columns, rows)
        to_alone, to_far = ratios["all CPUs"]
        report.verdict("p99 beside a server of 1 MiB results and one that times out, to that alone", to_alone, 2, "×")
        report.verdict("the same, to that with those two in another daemon", to_far, 2, "×")
    finally:
        near.stop()
        if far:
            far.stop()


def turn(near, far, cpu):
    found = {"alone": load(near, "quick", secs=2, on=cpu)}
    for side, host in (("far", far), ("near", near)):
        found[side] = beside(near, host, cpu)
    return found


def beside(daemon, host, cpu):
    """Calls of the quick server while `host` has the other two at work."""
    stop, counts = multiprocessing.Event(), multiprocessing.Queue()
    neighbours = [multiprocessing.Process(target=take_large, args=(host, cpu, stop, counts), daemon=True)]
    neighbours += [multiprocessing.Process(target=time_out, args=(host, stop, counts), daemon=True)]
    for neighbour in neighbours:
        neighbour.start()
    time.sleep(0.5)
    found = load(daemon, "quick", secs=2, on=cpu)
    stop.set()
    noise = {"large": 0, "timeouts": 0}
    for _ in neighbours:
        kind, count = counts.get(timeout=60)
        noise[kind] += count
    for neighbour in neighbours:
        neighbour.join()
    if not all(noise.values()):
        raise SystemExit(f"the neighbours were quiet: {noise}")
    return {**found, **noise}


def take_large(daemon, cpu, stop, counts):
    count = 0
    while not stop.is_set():
        count += load(daemon, "large", size=MIB, calls=100_000, secs=1, on=cpu)["calls"]
    counts.put(("large", count))


def time_out(daemon, stop, counts):
    """With bare sockets: what a client library does for each answer would itself be what the others notice."""
    params = {"name": "echo", "arguments": {"delay_ms": NEVER_MS}}
    body = json.dumps({"method": "tools/call", "params": params, "timeout_ms": TIMEOUT_MS})
    head = f"POST /api/v1/mcp/servers/silent/call HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.token}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    clients, count = [], 0
    for _ in range(TIMING_OUT):
        clients.append(socket.create_connection(("127.0.0.1", daemon.port), timeout=30))
        clients[-1].sendall(request)
        time.sleep(TIMEOUT_MS / 1000 / TIMING_OUT)
    while not stop.is_set():
        for client in select.select(clients, [], [], 1)[0]:
            answer = client.recv(MIB)
            if not answer.startswith(b"HTTP/1.1 504 "):
                raise SystemExit(f"no timeout, but {answer[:300]}")
            count += 1
            client.sendall(request)
    counts.put(("timeouts", count))
