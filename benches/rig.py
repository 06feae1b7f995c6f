"""What the benchmarks share: the programs they build, an ideal bridge, and a daemon as an operator has it."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BRIDGE = os.path.join(ROOT, "target/bridge")
SERVER = os.path.join(BRIDGE, "echo-mcp")
LOAD = os.path.join(BRIDGE, "release/bridge-bench")
IDEAL = os.path.join(BRIDGE, "release/limit-bridge")
CPU = max(os.sched_getaffinity(0))


def build(stdiod):
    quiet = {"cwd": ROOT, "check": True}
    os.makedirs(BRIDGE, exist_ok=True)
    fixture = os.path.join(ROOT, "benches/bridge/echo-mcp.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", SERVER, fixture], **quiet)
    manifest = os.path.join(ROOT, "benches/bridge/Cargo.toml")
    build = ["cargo", "build", "--release", "--quiet"]
    subprocess.run([*build, "--manifest-path", manifest, "--target-dir", BRIDGE], **quiet)
    if stdiod is None:
        subprocess.run(build, **quiet)
    return os.path.abspath(stdiod or os.path.join(ROOT, "target/release/stdiod"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ideal:
    """L2 in front of the fixture."""

    def __init__(self):
        self.port = free_port()
        self.process = subprocess.Popen([IDEAL, str(self.port), SERVER], stdin=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Daemon:
    """A stdiod with its own data directory, as an operator starts it."""

    def __init__(self, stdiod):
        self.data, self.port = tempfile.mkdtemp(prefix="stdiod-bench-"), free_port()
        os.chmod(self.data, 0o755)
        env = dict(os.environ, STDIOD_DATA_DIR=self.data, STDIOD_LISTEN=f"127.0.0.1:{self.port}", STDIOD_ALLOW_ISOLATION_NONE="true")
        env.pop("DATABASE_URL", None)
        self.log = open(os.path.join(self.data, "bench.log"), "w")
        began = time.monotonic()
        self.process = subprocess.Popen([stdiod, "serve"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)
        self.wait("the daemon", lambda: self.ask("GET", "/readyz")[0] == 200)
        self.boot_secs = time.monotonic() - began
        with open(os.path.join(self.data, "admin.token")) as file:
            self.token = file.read().strip()

    def ask(self, method, path, body=None):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        if os.path.exists(token := os.path.join(self.data, "admin.token")):
            headers["Authorization"] = "Bearer " + open(token).read().strip()
        client.request(method, path, None if body is None else json.dumps(body), headers)
        answer = client.getresponse()
        text = answer.read()
        client.close()
        return answer.status, text

    def wait(self, what, is_there, secs=120):
        until = time.monotonic() + secs
        while time.monotonic() < until:
            try:
                if is_there():
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        sys.exit(f"{what} is not there after {secs} s; the daemon's last words:\n" + open(self.log.name).read()[-2000:])

    def register(self, name, provider, **more):
        body = {"name": name, "rootfs": "host", "command": SERVER, "provider": provider}
        status, text = self.ask("POST", "/api/v1/mcp/servers", {**body, **more})
        if status not in (200, 201, 202):
            self.stop()
            sys.exit(f"registering {name}: {status} {text.decode()}")
        self.wait(name, lambda: json.loads(self.ask("GET", f"/api/v1/mcp/servers/{name}")[1])["status"] == "ready")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.data, ignore_errors=True)


def tree(pid):
    pids = [pid]
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                pids += map(int, open(f"/proc/{pid}/task/{task}/children").read().split())
        except OSError:
            pass
    return pids


def pin(pid):
    """Every thread of it and of its children, but for PostgreSQL, which has a machine's other CPU to itself."""
    for child in tree(pid):
        try:
            if open(f"/proc/{child}/comm").read().startswith("postgres"):
                continue
            for task in os.listdir(f"/proc/{child}/task"):
                os.sched_setaffinity(int(task), {CPU})
        except OSError:
            pass
