"""The boot of very many crun servers, beside the same starts by a shell that knows nothing but crun."""
import ctypes
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from datetime import datetime

from rig import ROOT, Daemon

PR_SET_CHILD_SUBREAPER = 36
READY_SECS = 600
# Between two looks, which take CPU time from the starts. What is measured is when the last was ready, not when that was seen.
PAUSE = 0.5
READY = re.compile(rb"^\[(\S+Z) .* to=ready why=", re.MULTILINE)
# Hundreds of containers that have just ended are work for the kernel for a while, and not for whoever starts the next.
QUIET_SECS = 3
# One start: its pipes, crun in a mount namespace that shows it one version of cgroups only, and the server's first answer. Both
# pipes are opened for reading and writing, so that the server has a stdin that does not end.
START = """
set -eu
cd "$1"
exec 3<>in 4<>out
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs -o size=64k tmpfs /sys/fs/cgroup/unified; fi
crun --root "$2" run --detach --bundle . --pid-file pid "${1##*/}" <&3 >&4 2>err 3<&- 4<&-
echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}' >&3
read -r answer <&4
case "$answer" in *'"result"'*) ;; *) echo "$1: $answer" >&2; exit 1 ;; esac
"""
DELETE = """
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs -o size=64k tmpfs /sys/fs/cgroup/unified; fi
for id; do crun --root "$ROOT" delete --force "$id"; done
"""


def measure(stdiod, arguments, report):
    # Orphans of crun come to us, and can be waited for.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    at_once, names = starts_at_once(), [f"b-{n}" for n in range(arguments.boots)]
    daemon, bare, turns = Daemon(stdiod), None, []
    try:
        daemon.register_all(names, "crun")
        bare = Bare(spec_of_one(daemon), len(names), at_once)
        for _ in range(arguments.rounds):
            daemon.halt()
            time.sleep(QUIET_SECS)
            try:
                took = bare.start()
            finally:
                bare.end()
            time.sleep(QUIET_SECS)
            turns.append((*boot(daemon, names), took))
        rows = [[n + 1, f"{whole:.2f}", f"{up:.2f}", f"{took:.2f}", f"{(whole - up) / took:.2f}", f"{whole / took:.2f}"] for n, (whole, up, took) in enumerate(turns)]
        middle = [statistics.median(column) for column in zip(*((whole, up, took, (whole - up) / took, whole / took) for whole, up, took in turns))]
        rows.append(["median", *(f"{value:.2f}" for value in middle)])
        columns = ["round", "daemon s, start to all ready", "of it until it has read its database", "shell loop s", "× without that", "×"]
        report.table(f"Boot of {len(names)} crun servers, {at_once} at once", columns, rows)
        report.verdict("boot to the shell loop, the daemon's own start included", middle[-1], 1.3, "×")
    finally:
        daemon.stop()
        if bare:
            bare.remove()


def starts_at_once():
    with open(os.path.join(ROOT, "src/limits.rs")) as file:
        return int(re.search(r"STARTS_AT_ONCE: usize = (\d+);", file.read())[1])


def spec_of_one(daemon):
    with open(sorted(glob.glob(f"{daemon.data}/run/bundles/*/config.json"))[0]) as file:
        return json.load(file)


def boot(daemon, names):
    """Seconds from its start until all are ready, and those of them until it had its database."""
    with open(daemon.log.name, "rb") as log:
        log.seek(0, os.SEEK_END)
        began = time.time()
        daemon.start()
        daemon.wait("the daemon", lambda: daemon.ask("GET", "/readyz")[0] == 200)
        up = time.time() - began
        daemon.wait("all servers", lambda: len(daemon.ready()) == len(names), READY_SECS, PAUSE)
        # Its lines are written by another thread than the one that answers.
        said = bytearray()
        daemon.wait("the last line of the log", lambda: said.extend(log.read()) or len(READY.findall(said)) >= len(names))
    times = READY.findall(said)
    if len(times) != len(names):
        raise SystemExit(f"{len(times)} starts of {len(names)} servers")
    return max(datetime.fromisoformat(at.decode()).timestamp() for at in times) - began, up


class Bare:
    """Bundles as the daemon makes them, but for what a bare crun has no notion of: the disk of a size is a tmpfs, and the host's
    directories are bound by crun itself into one root for all."""

    def __init__(self, spec, count, at_once):
        self.at_once, self.top = at_once, tempfile.mkdtemp(prefix="stdiod-bench-crun-")
        os.chmod(self.top, 0o755)
        self.state, self.cgroup = os.path.join(self.top, "state"), "/" + os.path.basename(self.top)
        root = os.path.join(self.top, "rootfs")
        spec = json.loads(json.dumps(spec))
        spec["root"]["path"] = root
        own = [mount for mount in spec["mounts"] if mount["destination"] != "/tmp"]
        size = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777", "size=16m"]}
        spec["mounts"] = [*self.host_view(root), *own, size]
        self.bundles = [os.path.join(self.top, f"c-{n}") for n in range(count)]
        for bundle in self.bundles:
            os.mkdir(bundle)
            spec["linux"]["cgroupsPath"] = f"{self.cgroup}/{os.path.basename(bundle)}"
            with open(os.path.join(bundle, "config.json"), "w") as file:
                json.dump(spec, file)
            for pipe in ("in", "out"):
                os.mkfifo(os.path.join(bundle, pipe))

    @staticmethod
    def host_view(root):
        for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sys", "/dev", "/tmp"):
            os.makedirs(root, exist_ok=True)
            if os.path.islink(path):
                os.symlink(os.readlink(path), root + path)
            elif path in ("/proc", "/sys", "/dev", "/tmp"):
                os.mkdir(root + path)
        for path in ("/usr", "/etc/alternatives", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/ld.so.conf.d", "/etc/fonts", "/etc/terminfo"):
            if os.path.isdir(path):
                os.makedirs(root + path)
                yield {"destination": path, "type": "bind", "source": path, "options": ["bind", "ro", "nosuid", "nodev"]}

    def start(self):
        loop = f"xargs -P {self.at_once} -I BUNDLE unshare --mount sh -c '{quoted(START)}' start BUNDLE {self.state}"
        began = time.monotonic()
        run = subprocess.run(["sh", "-c", loop], input="\n".join(self.bundles), text=True, capture_output=True, timeout=READY_SECS)
        took = time.monotonic() - began
        if run.returncode:
            said = "".join(open(path).read() for path in glob.glob(f"{self.top}/*/err"))
            raise SystemExit(f"the shell loop: {run.stderr[-500:]} {said[-500:]}")
        return took

    def end(self):
        command = ["unshare", "--mount", "sh", "-c", DELETE, "delete", *map(os.path.basename, self.bundles)]
        subprocess.run(command, env=dict(os.environ, ROOT=self.state), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=READY_SECS)
        reap()

    def remove(self):
        """Only when all is measured: some file systems are slow for a while after very many files are removed."""
        for directory in glob.glob(f"/sys/fs/cgroup/*{self.cgroup}") + glob.glob(f"/sys/fs/cgroup{self.cgroup}"):
            os.rmdir(directory)
        shutil.rmtree(self.top)


def quoted(script):
    return script.replace("'", "'\\''")


def reap():
    """The containers' processes; nobody else's child is still running when this is called."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
        except ChildProcessError:
            return
