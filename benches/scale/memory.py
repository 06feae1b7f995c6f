"""RSS of the daemon: idle, per further idle server, and over very many calls."""
import time

from rig import Daemon, load

# Calls between two looks, and the connections that make them: several, so that buffers are in use at once.
CHUNK, CONNS = 50_000, 16
# The allocator's own noise over a run: a leak of one byte a call would be a multiple of it over a million.
NOISE_KIB = 512


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon", "RssFile")}


def measure(stdiod, arguments, report):
    daemon = Daemon(stdiod)
    try:
        idle(daemon, arguments, report)
        calls(daemon, arguments, report)
    finally:
        daemon.stop()


def idle(daemon, arguments, report):
    rows, found, have = [], {}, 0
    for count in sorted({10, min(200, arguments.servers), arguments.servers}):
        daemon.register_all([f"idle-{n}" for n in range(have, count)], "none")
        have = count
        # The tool lists of the last ones, and the writes behind.
        time.sleep(2)
        found[count] = rss_kib(daemon.process.pid)
        each = (found[count]["VmRSS"] - found[10]["VmRSS"]) / (count - 10) if count > 10 else None
        rows.append([count, *(f"{kib / 1024:.1f}" for kib in found[count].values()), "" if each is None else f"{each:.1f}"])
    report.table("Memory, idle", ["servers", "RSS MiB", "of it anonymous", "of it the program's file", "KiB per server beyond 10"], rows)
    report.verdict("RSS with 10 idle servers", found[10]["VmRSS"] / 1024, 12, " MiB")
    report.verdict("RSS per further idle server", (found[have]["VmRSS"] - found[10]["VmRSS"]) / max(1, have - 10), 64, " KiB")


def calls(daemon, arguments, report):
    daemon.register("called", "none", max_in_flight=CONNS)
    rows, made, looks = [], 0, []
    while made < arguments.calls or len(looks) < 2:
        made += load(daemon, "called", conns=CONNS, calls=CHUNK, secs=60)["calls"]
        looks.append(rss_kib(daemon.process.pid)["VmRSS"])
        if len(looks) == 1 or made >= arguments.calls or len(looks) % 5 == 0:
            rows.append([f"{made:,}", f"{looks[-1] / 1024:.2f}", f"{looks[-1] - looks[0]:+d}"])
    report.table("Memory over calls", ["calls", "RSS MiB", f"KiB since the first {CHUNK:,}"], rows)
    report.verdict(f"growth between {CHUNK:,} and {made:,} calls", looks[-1] - looks[0], NOISE_KIB, " KiB")
