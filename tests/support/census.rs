//! Everything of one daemon that can be found on its machine, by the names that the daemon gives to things: the mark of
//! its data directory, and the ids of its containers. Unlike `World` it need not have seen a thing to find it, so it
//! also finds what was made between the last look and a SIGKILL. Only looks.

use super::world::{World, all_processes, command_of, descendants, loops_with, mounts_with, parents};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use stdiod::sandbox::container::cni;
use stdiod::sandbox::container::plan::Layout;

pub struct Census {
    home: PathBuf,
    layout: Layout,
}

impl Census {
    /// Of the daemon whose data directory is `home/data`.
    pub fn of(home: &Path) -> Census {
        Census { home: home.to_path_buf(), layout: Layout::of(home.join("data")) }
    }

    /// What belongs to no container that the daemon runs now, as far as it was made for one.
    pub fn strangers(&self, daemon: i32) -> Vec<String> {
        let mut now = World::default();
        now.look(daemon);
        let current = now.containers();
        let mut found = self.processes(daemon);
        found.extend(self.cgroups().into_iter().filter(|name| !belongs(name, &current)).map(|n| format!("cgroup {n}")));
        let home = self.home.to_str().expect("our own name");
        found.extend(mounts_with(home).into_iter().map(|mount| format!("mount {mount}")));
        let loops = loops_with(home);
        // The image of a server's volumes has one device, which all of its instances share.
        let is_shared = |file: &String| {
            let is_volume = file.contains("/volumes/") && !current.is_empty();
            is_volume && loops.iter().filter(|other| *other == file).count() == 1
        };
        let strange = loops.iter().filter(|file| !belongs(file, &current) && !is_shared(file));
        found.extend(strange.map(|file| format!("loop device of {file}")));
        let fenced = self.fenced().into_iter().filter(|id| !belongs(id, &current));
        found.extend(fenced.map(|id| format!("nft chain {id}")));
        let leases = self.leases();
        found.extend(leases.iter().filter(|(_, id)| !belongs(id, &current)).map(|(at, id)| format!("lease {at} {id}")));
        if self.cables() != leases.len() {
            found.push(format!("{} cables for {} addresses", self.cables(), leases.len()));
        }
        let files = self.files().into_iter().filter(|name| !belongs(name, &current));
        found.extend(files.map(|name| format!("file {name}")));
        found
    }

    fn processes(&self, daemon: i32) -> Vec<String> {
        let (home, mark) = (self.home.to_str().expect("our own name"), format!("/stdiod-{}/", self.layout.mark));
        let own: BTreeSet<i32> =
            descendants(daemon).into_iter().chain([daemon, std::process::id().cast_signed()]).collect();
        let is_of_it = |pid: &i32| {
            let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let has = |file: &str, text: &str| String::from_utf8_lossy(&read(file)).contains(text);
            has("cmdline", home) || has("environ", home) || has("cgroup", &mark)
        };
        let strange = all_processes().filter(|pid| !own.contains(pid)).filter(is_of_it);
        let told = strange.filter_map(|pid| Some(format!("process {pid}: {}", command_of(pid)?)));
        // The database outlives its daemon on purpose: the next one takes it over.
        told.filter(|line| !line.contains("postgres") && !line.ends_with(": ")).collect()
    }

    fn cgroups(&self) -> BTreeSet<String> {
        let parents = parents(&self.home);
        let entries = parents.iter().flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The containers that this daemon's fence has a chain for, in any family.
    fn fenced(&self) -> BTreeSet<String> {
        let output = Command::new("nft").args(["list", "chains"]).output().expect("nft: scripts/setup installs it");
        let (mut found, mut ours) = (BTreeSet::new(), false);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["table", _, name, "{"] => ours = name == format!("stdiod_{}", self.layout.mark),
                ["chain", name, "{"] if ours => {
                    found.extend(name.strip_prefix("server_").map(|id| id.replace('_', "-")))
                }
                _ => {}
            }
        }
        found
    }

    /// Address and container.
    fn leases(&self) -> Vec<(String, String)> {
        let networks = std::fs::read_dir(self.layout.run_dir().join("leases")).into_iter().flatten().flatten();
        let files = networks.flat_map(|network| std::fs::read_dir(network.path()).into_iter().flatten().flatten());
        let addresses = files.filter(|file| file.file_name().to_string_lossy().starts_with("10."));
        let read = |file: std::fs::DirEntry| {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            (file.file_name().to_string_lossy().into_owned(), text.lines().next().unwrap_or_default().to_string())
        };
        addresses.map(read).collect()
    }

    /// The host's ends of the cables to this daemon's network namespaces: such an end goes with its namespace.
    fn cables(&self) -> usize {
        let subnet = cni::subnet(&self.layout.mark);
        let gateway = subnet.replace(".0/19", ".1/");
        let output = Command::new("ip").args(["-o", "-4", "addr", "show"]).output().expect("ip: scripts/setup");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| line.contains("veth") && line.contains(&format!("inet {gateway}"))).count()
    }

    /// In the places where a launch puts something.
    fn files(&self) -> Vec<String> {
        let run = self.layout.run_dir();
        let list = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let providers = ["crun", "gvisor"].map(|provider| self.layout.runtime_root(provider));
        let mut found: Vec<PathBuf> = list(run.join("bundles")).chain(providers.into_iter().flat_map(list)).collect();
        found.extend(["tmp", "pull/blobs/sha256"].into_iter().flat_map(|dir| list(self.layout.images_dir().join(dir))));
        found.iter().map(|path| path.display().to_string()).collect()
    }
}

fn belongs(name: &str, current: &BTreeSet<String>) -> bool {
    current.iter().any(|id| name.contains(id.as_str()))
}
