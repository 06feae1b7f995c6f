//! The three layouts of cgroups against trees of files, because a host has only one of them. `V1` and `HYBRID` hold what
//! this kernel shows of a container; `V2` is what the kernel's documentation says such a tree looks like, with the files
//! that need no controller (`cpu.stat`, `cgroup.*`) as a real `cgroup2` mount has them.

use nix::unistd::mkdtemp;
use std::path::{Path, PathBuf};
use stdiod::model::status::Usage;
use stdiod::sandbox::container::plan::Layout;
use stdiod::sandbox::host::cgroup::{Hierarchies, Mode};

const ID: &str = "3f2a9c1b-7";

struct Tree {
    mode: Mode,
    /// As in `/proc/self/mountinfo`.
    mounts: &'static [(&'static str, &'static str, &'static str)],
    /// `{}` is the instance's cgroup.
    files: &'static [(&'static str, &'static str)],
    usage: (u64, u64, u64),
    counts_swap: bool,
}

const V1_STAT: &str = "cache 14491648\nrss 8720384\ninactive_file 20480\ntotal_cache 14491648\ntotal_rss 8720384\n\
                       total_inactive_file 4096000\ntotal_active_file 1388544\n";
const V2_STAT: &str = "anon 8720384\nfile 14491648\nkernel 1228800\ninactive_anon 0\nactive_anon 8716288\n\
                       inactive_file 4096000\nactive_file 1388544\nunevictable 0\n";

const HYBRID: Tree = Tree {
    mode: Mode::Hybrid,
    mounts: &[
        ("/cpu", "cgroup", "rw,cpu"),
        ("/cpuacct", "cgroup", "rw,cpuacct"),
        ("/memory", "cgroup", "rw,memory"),
        ("/freezer", "cgroup", "rw,freezer"),
        ("/pids", "cgroup", "rw,pids"),
        ("/unified", "cgroup2", "rw"),
    ],
    files: &[
        ("cpuacct/{}/cpuacct.usage", "1234567890\n"),
        ("memory/memory.memsw.limit_in_bytes", "9223372036854771712\n"),
        ("memory/{}/memory.usage_in_bytes", "24440832\n"),
        ("memory/{}/memory.stat", V1_STAT),
        ("memory/{}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ("pids/{}/pids.current", "3\n"),
        // What is beside the controllers says nothing of them, and is not believed if it does.
        ("unified/cgroup.controllers", "hugetlb\n"),
        ("unified/{}/cpu.stat", "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnice_usec 0\n"),
        ("unified/{}/memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"),
    ],
    usage: (1234, 24_440_832 - 4_096_000, 3),
    counts_swap: true,
};

const V1: Tree = Tree {
    mode: Mode::V1,
    mounts: &[
        ("/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"),
        ("/memory", "cgroup", "rw,memory"),
        ("/pids", "cgroup", "rw,pids"),
        ("/systemd", "cgroup", "rw,xattr,name=systemd"),
    ],
    files: &[
        ("cpu,cpuacct/{}/cpuacct.usage", "99000000\n"),
        // A kernel without swap accounting: no memsw files at all.
        ("memory/{}/memory.usage_in_bytes", "4096000\n"),
        ("memory/{}/memory.stat", V1_STAT),
        ("memory/{}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("pids/{}/pids.current", "1\n"),
    ],
    usage: (99, 0, 1),
    counts_swap: false,
};

const V2: Tree = Tree {
    mode: Mode::V2,
    mounts: &[("", "cgroup2", "rw,nsdelegate,memory_recursiveprot")],
    files: &[
        ("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n"),
        ("cgroup.subtree_control", "memory pids\n"),
        ("stdiod-3f2a9c1b/cgroup.controllers", "cpu memory pids\n"),
        ("stdiod-3f2a9c1b/cgroup.subtree_control", "\n"),
        ("stdiod-3f2a9c1b/memory.swap.max", "max\n"),
        ("{}/cpu.stat", "usage_usec 2500999\nuser_usec 2000000\nsystem_usec 500999\nnr_periods 10\n"),
        ("{}/memory.current", "24440832\n"),
        ("{}/memory.stat", V2_STAT),
        ("{}/memory.events", "low 0\nhigh 0\nmax 41\noom 1\noom_kill 1\noom_group_kill 0\n"),
        ("{}/pids.current", "22\n"),
    ],
    usage: (2500, 24_440_832 - 4_096_000, 22),
    counts_swap: true,
};

/// A tree on disk, and the hierarchies as they would be if it were mounted.
struct Grown {
    root: PathBuf,
    hierarchies: Hierarchies,
}

impl Grown {
    fn of(tree: &Tree) -> Grown {
        let root = mkdtemp("/tmp/sd-cg-XXXXXX").expect("a directory");
        for (path, text) in tree.files {
            let path = root.join(path.replace("{}", &format!("stdiod-3f2a9c1b/{ID}")));
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        let line = |(point, kind, options): &(&str, &str, &str)| {
            format!("31 23 0:28 / /sys/fs/cgroup{point} rw,relatime - {kind} {kind} {options}\n")
        };
        let mountinfo: String = tree.mounts.iter().map(line).collect();
        let mut hierarchies = Hierarchies::detect(&mountinfo).expect("cgroups are mounted");
        let here = |path: &Path| root.join(path.strip_prefix("/sys/fs/cgroup").expect("below it"));
        hierarchies.v1.values_mut().chain(&mut hierarchies.v2).for_each(|path| *path = here(path));
        Grown { root, hierarchies }
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).expect("a file")
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn layout() -> Layout {
    Layout { data_dir: "/var/lib/stdiod".into(), mark: "3f2a9c1b".into() }
}

#[test]
fn each_layout_tells_what_an_instance_uses_and_whether_it_ran_out_of_memory() {
    for tree in [HYBRID, V1, V2] {
        let grown = Grown::of(&tree);
        assert_eq!(grown.hierarchies.mode(), tree.mode);
        let files = grown.hierarchies.instance(&layout(), ID);
        let (cpu_ms_total, memory_bytes, pids) = tree.usage;
        let usage = Usage { cpu_ms_total, memory_bytes, pids, ..Usage::default() };
        assert_eq!(files.usage(), Some(usage), "{:?}", tree.mode);
        assert!(files.oom_killed(), "{:?}", tree.mode);
        let other = grown.hierarchies.instance(&layout(), "3f2a9c1b-8");
        assert_eq!((other.usage(), other.oom_killed()), (None, false), "one that is not there: {:?}", tree.mode);
    }
}

#[test]
fn each_layout_is_prepared_in_its_own_way() {
    for tree in [HYBRID, V1, V2] {
        let grown = Grown::of(&tree);
        let prepared = grown.hierarchies.prepare(&layout()).expect("it can be");
        assert_eq!(prepared.counts_swap, tree.counts_swap, "{:?}", tree.mode);
        match tree.mode {
            // Nothing to hand down: what is beside the controllers stays as it is.
            Mode::V1 | Mode::Hybrid => assert!(!grown.root.join("unified/stdiod-3f2a9c1b/cgroup.procs").exists()),
            Mode::V2 => {
                assert_eq!(grown.read("cgroup.subtree_control"), "+cpu", "only what is missing is asked for");
                assert_eq!(grown.read("stdiod-3f2a9c1b/cgroup.subtree_control"), "+pids", "the last of three");
            }
        }
    }
}

#[test]
fn a_v2_tree_without_a_controller_says_which() {
    let grown = Grown::of(&V2);
    std::fs::write(grown.root.join("cgroup.controllers"), "cpuset io memory\n").expect("a file");
    let why = grown.hierarchies.prepare(&layout()).expect_err("it cannot be").to_string();
    assert!(why.contains("has no cpu controller"), "{why}");
}

#[test]
fn the_end_of_an_instance_on_v2_is_asked_of_the_kernel_in_one_word() {
    let grown = Grown::of(&V2);
    let kill = grown.root.join(format!("stdiod-3f2a9c1b/{ID}/cgroup.kill"));
    std::fs::write(&kill, "").expect("a file");
    // Ordinary directories do not go while files are in them; what counts is what was written.
    let instance = grown.hierarchies.instance(&layout(), ID);
    assert!(instance.kill_and_remove(std::time::Duration::ZERO).is_err());
    assert_eq!(std::fs::read_to_string(kill).expect("a file"), "1");
}
