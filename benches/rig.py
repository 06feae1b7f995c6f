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
        self.stdiod, self.process, self.shown = stdiod, None, None
        self.data, self.port = tempfile.mkdtemp(prefix="stdiod-bench-"), free_port()
        os.chmod(self.data, 0o755)
        self.log = open(os.path.join(self.data, "bench.log"), "w")
        self.start()
        self.wait("the daemon", lambda: self.ask("GET", "/readyz")[0] == 200)
        self.boot_secs = time.monotonic() - self.began
        with open(os.path.join(self.data, "admin.token")) as file:
            self.token = file.read().strip()

    def start(self):
        """As `halt` left it; it is not waited for."""
        env = dict(os.environ, STDIOD_DATA_DIR=self.data, STDIOD_LISTEN=f"127.0.0.1:{self.port}", STDIOD_ALLOW_ISOLATION_NONE="true")
        env.pop("DATABASE_URL", None)
        self.began = time.monotonic()
        self.process = subprocess.Popen([self.stdiod, "serve"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)

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

    def wait(self, what, is_there, secs=120, pause=0.05):
        until = time.monotonic() + secs
        while time.monotonic() < until:
            try:
                if is_there():
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(pause)
        said = open(self.log.name).read()[-2000:]
        self.stop()
        sys.exit(f"{what} is not there after {secs} s; the daemon's last words:\n{said}")

    def register(self, name, provider, **more):
        self.register_all([name], provider, **more)

    def register_all(self, names, provider, **more):
        """None is waited for before all of them are there."""
        command = SERVER if provider == "none" else self.show()
        for name in names:
            body = {"name": name, "rootfs": "host", "command": command, "provider": provider}
            status, text = self.ask("POST", "/api/v1/mcp/servers?wait=false", {**body, **more})
            if status not in (200, 201, 202):
                self.stop()
                sys.exit(f"registering {name}: {status} {text.decode()}")
        self.wait(f"{names[-1]} and all before it", lambda: set(names) <= self.ready(), 60 + len(names))

    def show(self):
        """The fixture, where sandboxes see it."""
        if self.shown is None:
            self.shown = tempfile.mkdtemp(prefix="stdiod-bench-", dir="/usr/local")
            os.chmod(self.shown, 0o755)
            shutil.copy(SERVER, self.shown)
        return os.path.join(self.shown, os.path.basename(SERVER))

    def ready(self):
        """None as long as the daemon has not read its servers."""
        status, text = self.ask("GET", "/api/v1/mcp/servers?status=ready")
        return {server["name"] for server in json.loads(text)} if status == 200 else set()

    def halt(self):
        """Its data stays."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def stop(self):
        self.halt()
        self.log.close()
        for directory in filter(None, (self.data, self.shown)):
            shutil.rmtree(directory, ignore_errors=True)


def load(daemon, server, size=100, conns=1, calls=20_000, secs=2, on=None):
    """Calls of one server by REST; `on`: the CPU to make them from. Every answer is checked."""
    options = ["--mode", "rest", "--url", f"http://127.0.0.1:{daemon.port}/api/v1/mcp/servers/{server}/call"]
    options += ["--header", f"Authorization: Bearer {daemon.token}", "--pid", daemon.process.pid, "--alone", 1]
    options += ["--size", size, "--conns", conns, "--calls", calls, "--secs", secs]
    command = [*(["taskset", "-c", str(on)] if on is not None else []), LOAD, "run", *map(str, options)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60 + secs)
    found = json.loads(run.stdout.strip().splitlines()[-1])
    if "fatal" in found or found["errors"]:
        sys.exit(f"calls of {server}: {found}")
    return found


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
