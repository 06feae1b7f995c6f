"""Head-of-line blocking: what a server's callers notice of two bad neighbours."""
import http.client
import json
import multiprocessing
import statistics
import time

from rig import CPU, Daemon, load, pin

# A call of this server is never answered; each of the clients makes the next when the last has timed out.
NEVER_MS, TIMEOUT_MS, TIMING_OUT = 3_600_000, 100, 4
MIB = 1 << 20


def measure(stdiod, arguments, report):
    daemon = Daemon(stdiod)
    try:
        for name, more in (("quick", {}), ("large", {}), ("silent", {"max_in_flight": TIMING_OUT})):
            daemon.register(name, "none", **more)
        rows, ratios = [], {}
        for title, cpu in (("all CPUs", None), ("one CPU for everything", CPU)):
            if cpu is not None:
                pin(daemon.process.pid)
            turns = [turn(daemon, cpu) for _ in range(arguments.rounds)]
            cells = [statistics.median(side[key] for side in sides) for key in ("p50", "p99") for sides in zip(*((a, b) for a, b, _ in turns))]
            ratios[title] = statistics.median(beside["p99"] / alone["p99"] for alone, beside, _ in turns)
            noise = [sum(noise[key] for *_, noise in turns) for key in ("large", "timeouts")]
            rows.append([title, *(f"{cell:.0f}" for cell in cells), f"{ratios[title]:.2f}", *(f"{count:,}" for count in noise)])
        columns = ["the machine", "p50 µs alone", "beside", "p99 µs alone", "beside", "× p99", "1 MiB results meanwhile", "timeouts meanwhile"]
        report.table("Head of line", columns, rows)
        report.verdict("p99 beside a server of 1 MiB results and one that times out, to that alone", ratios["all CPUs"], 2, "×")
    finally:
        daemon.stop()


def turn(daemon, cpu):
    alone = load(daemon, "quick", secs=2, on=cpu)
    stop, counts = multiprocessing.Event(), multiprocessing.Queue()
    neighbours = [multiprocessing.Process(target=take_large, args=(daemon, cpu, stop, counts), daemon=True)]
    neighbours += [multiprocessing.Process(target=time_out, args=(daemon, stop, counts), daemon=True) for _ in range(TIMING_OUT)]
    for neighbour in neighbours:
        neighbour.start()
    time.sleep(0.5)
    beside = load(daemon, "quick", secs=2, on=cpu)
    stop.set()
    noise = {"large": 0, "timeouts": 0}
    for _ in neighbours:
        kind, count = counts.get(timeout=60)
        noise[kind] += count
    for neighbour in neighbours:
        neighbour.join()
    if not all(noise.values()):
        raise SystemExit(f"the neighbours were quiet: {noise}")
    return alone, beside, noise


def take_large(daemon, cpu, stop, counts):
    count = 0
    while not stop.is_set():
        count += load(daemon, "large", size=MIB, calls=100_000, secs=1, on=cpu)["calls"]
    counts.put(("large", count))


def time_out(daemon, stop, counts):
    client, count = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30), 0
    params = {"name": "echo", "arguments": {"delay_ms": NEVER_MS}}
    body = json.dumps({"method": "tools/call", "params": params, "timeout_ms": TIMEOUT_MS})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {daemon.token}"}
    while not stop.is_set():
        client.request("POST", "/api/v1/mcp/servers/silent/call", body, headers)
        answer = client.getresponse()
        text = answer.read()
        if answer.status != 504:
            raise SystemExit(f"no timeout, but {answer.status}: {text[:300]}")
        count += 1
    counts.put(("timeouts", count))
