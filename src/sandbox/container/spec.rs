//! config.json: one definition on one runtime, built from the hardened `bundles/base.json`. PURE: what exists on the
//! host is told in a `Setting`. Only ever takes rights away from the base or adds what the definition asks for.

use crate::limits::CONTAINER_USERS;
use crate::model::definition::{Definition, ResourceLimits, Source};
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::account::Account;
use crate::sandbox::container::plan::{Runtime, RuntimeKind, fault};
use oci_spec::image::Config as ImageConfig;
use oci_spec::runtime::{
    Arch, Linux, LinuxCpuBuilder, LinuxIdMapping, LinuxIdMappingBuilder, LinuxMemoryBuilder, LinuxNamespaceBuilder,
    LinuxNamespaceType, LinuxPidsBuilder, LinuxSeccomp, Mount, MountBuilder, RootBuilder, Spec, UserBuilder,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const BASE: &str = include_str!("../../../bundles/base.json");
const SECCOMP: &str = include_str!("../../../bundles/seccomp.json");

const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// uv asks its index even for what it has, and gives up where nobody can be asked; where there is no network, a server
/// with a cache of uv is told to be content with it.
const UV_CACHE: &str = "UV_CACHE_DIR";
const UV_OFFLINE: &str = "UV_OFFLINE";
/// The period of the cpu quota, the kernel's own default.
pub const CPU_PERIOD_US: u64 = 100_000;
/// The kernel takes no smaller quota.
const CPU_QUOTA_MIN_US: i64 = 1_000;
/// runsc's cgroup holds the threads of its own kernel and one or more host threads per thread inside, and a sandbox
/// that hits the limit dies. Its own limits hold inside; this one only protects the host.
const GVISOR_PIDS_SPARE: i64 = 512;

/// What a spec needs to know of the world.
pub struct Setting<'a> {
    pub account: &'a Account,
    pub rootfs: &'a Path,
    pub cgroup: &'a Path,
    /// Destination in the container, directory on the host.
    pub volumes: &'a [(PathBuf, PathBuf)],
    /// The directory on the instance's disk that is its `/tmp`.
    pub tmp: &'a Path,
    pub cgroup_counts_swap: bool,
    pub network: Network<'a>,
    /// The host's number for the container's root, if its users are shifted.
    pub first_user: Option<u32>,
}

/// The network namespace of a container.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    /// A new one with loopback.
    Own,
    /// One that is made and connected already.
    Joined(&'a Path),
    /// The host's.
    Host,
}

pub fn config(
    def: &Definition,
    image: Option<&ImageConfig>,
    runtime: &Runtime,
    setting: &Setting<'_>,
) -> Result<Spec, LaunchFault> {
    let mut spec: Spec = serde_json::from_str(BASE).expect("bundles/base.json is a valid spec");
    spec.set_hostname(Some(def.name.clone()));
    set_root(&mut spec, def, setting)?;
    set_process(&mut spec, def, image, setting)?;
    set_mounts(&mut spec, def, setting)?;
    set_linux(&mut spec, def, runtime, setting)?;
    Ok(spec)
}

/// The command line: the definition's `cmd` takes the place of the image's CMD, never of its ENTRYPOINT.
pub fn command(def: &Definition, image: Option<&ImageConfig>) -> Result<Vec<String>, LaunchFault> {
    let of_image = |part: fn(&ImageConfig) -> &Option<Vec<String>>| image.and_then(|i| part(i).clone());
    let mut args = of_image(ImageConfig::entrypoint).unwrap_or_default();
    if def.cmd.is_empty() {
        args.extend(of_image(ImageConfig::cmd).unwrap_or_default());
    } else {
        args.extend(def.cmd.iter().cloned());
    }
    if args.is_empty() {
        return Err(LaunchFault {
            kind: LaunchFaultKind::Rootfs,
            message: "no command: neither the definition nor the image has one".into(),
        });
    }
    Ok(args)
}

/// Where the process starts; always absolute.
pub fn workdir(def: &Definition, image: Option<&ImageConfig>) -> PathBuf {
    let of_image = image.and_then(|i| i.working_dir().as_deref()).filter(|dir| !dir.is_empty());
    Path::new("/").join(def.workdir.as_deref().or(of_image).unwrap_or("/"))
}

/// The user that is asked for, in the definition or in the image.
pub fn user<'a>(def: &'a Definition, image: Option<&'a ImageConfig>) -> Option<&'a str> {
    def.user.as_deref().or_else(|| image.and_then(|i| i.user().as_deref()))
}

fn environment(def: &Definition, image: Option<&ImageConfig>, setting: &Setting<'_>) -> Vec<String> {
    let mut vars = BTreeMap::new();
    vars.insert("PATH".to_owned(), PATH_DEFAULT.to_owned());
    vars.insert("HOME".to_owned(), setting.account.home.clone().unwrap_or_else(|| "/".to_owned()));
    if let (Network::Own, true) = (setting.network, def.environment.contains_key(UV_CACHE)) {
        vars.insert(UV_OFFLINE.to_owned(), "1".to_owned());
    }
    let of_image = image.and_then(|i| i.env().as_deref()).unwrap_or_default();
    for (name, value) in of_image.iter().filter_map(|var| var.split_once('=')) {
        vars.insert(name.to_owned(), value.to_owned());
    }
    vars.extend(def.environment.clone());
    vars.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn set_root(spec: &mut Spec, def: &Definition, setting: &Setting<'_>) -> Result<(), LaunchFault> {
    // An image has a writable layer of its own, gone with the instance; the host's view has nothing to write to.
    let readonly = match def.source {
        Source::HostRootfs => true,
        Source::Image(_) => false,
    };
    spec.set_root(Some(RootBuilder::default().path(setting.rootfs).readonly(readonly).build().map_err(invalid)?));
    Ok(())
}

fn set_process(
    spec: &mut Spec,
    def: &Definition,
    image: Option<&ImageConfig>,
    setting: &Setting<'_>,
) -> Result<(), LaunchFault> {
    let account = setting.account;
    let process = spec.process_mut().as_mut().expect("the base has a process");
    process.set_args(Some(command(def, image)?));
    process.set_env(Some(environment(def, image, setting)));
    process.set_cwd(workdir(def, image));
    let mut user = UserBuilder::default().uid(account.uid).gid(account.gid);
    if !account.groups.is_empty() {
        user = user.additional_gids(account.groups.clone());
    }
    process.set_user(user.build().map_err(invalid)?);
    Ok(())
}

fn set_mounts(spec: &mut Spec, def: &Definition, setting: &Setting<'_>) -> Result<(), LaunchFault> {
    let mounts = spec.mounts_mut().as_mut().expect("the base has mounts");
    mounts.push(mount(Path::new("/tmp"), "bind", setting.tmp, &["bind", "rw", "nosuid", "nodev"])?);
    for (destination, source) in setting.volumes {
        let read_only = destination.to_str().is_some_and(|path| def.read_only_volumes.contains(path));
        let mode = if read_only { "ro" } else { "rw" };
        mounts.push(mount(destination, "bind", source, &["bind", mode, "nosuid", "nodev"])?);
    }
    Ok(())
}

fn mount(destination: &Path, typ: &str, source: &Path, options: &[&str]) -> Result<Mount, LaunchFault> {
    let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    MountBuilder::default().destination(destination).typ(typ).source(source).options(options).build().map_err(invalid)
}

fn set_linux(spec: &mut Spec, def: &Definition, runtime: &Runtime, setting: &Setting<'_>) -> Result<(), LaunchFault> {
    let limits = &def.resource_limits;
    let linux = spec.linux_mut().as_mut().expect("the base has a linux part");
    linux.set_cgroups_path(Some(setting.cgroup.to_owned()));
    let namespaces = linux.namespaces_mut().as_mut().expect("the base has namespaces");
    match setting.network {
        Network::Own => {}
        Network::Host => namespaces.retain(|namespace| namespace.typ() != LinuxNamespaceType::Network),
        Network::Joined(path) => {
            let network = namespaces.iter_mut().find(|namespace| namespace.typ() == LinuxNamespaceType::Network);
            network.expect("the base has one").set_path(Some(path.to_owned()));
        }
    }

    let bytes = i64::try_from(limits.memory_bytes).unwrap_or(i64::MAX);
    let mut memory = LinuxMemoryBuilder::default().limit(bytes);
    if setting.cgroup_counts_swap {
        // Memory and swap together: no swap at all.
        memory = memory.swap(bytes);
    }
    let quota = cpu_quota_us(limits);
    let pids = match runtime.kind {
        RuntimeKind::Native | RuntimeKind::Plain => i64::from(limits.pids),
        RuntimeKind::Gvisor => i64::from(limits.pids) + GVISOR_PIDS_SPARE,
    };
    let resources = linux.resources_mut().as_mut().expect("the base has resources");
    resources.set_memory(Some(memory.build().map_err(invalid)?));
    resources.set_cpu(Some(LinuxCpuBuilder::default().quota(quota).period(CPU_PERIOD_US).build().map_err(invalid)?));
    resources.set_pids(Some(LinuxPidsBuilder::default().limit(pids).build().map_err(invalid)?));

    match runtime.kind {
        // It brings its own kernel: no host syscall of the program is ever made, and cgroups are not shown inside.
        RuntimeKind::Gvisor | RuntimeKind::Plain => {}
        RuntimeKind::Native => {
            let cgroup = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::Cgroup).build().map_err(invalid)?;
            linux.namespaces_mut().as_mut().expect("the base has namespaces").push(cgroup);
            linux.set_seccomp(Some(seccomp()));
            if let Some(first) = setting.first_user {
                shift_users(linux, first)?;
            }
        }
    }
    Ok(())
}

/// Of `CPU_PERIOD_US`.
pub fn cpu_quota_us(limits: &ResourceLimits) -> i64 {
    (i64::from(limits.cpu_milli) * CPU_PERIOD_US as i64 / 1000).max(CPU_QUOTA_MIN_US)
}

fn shift_users(linux: &mut Linux, first: u32) -> Result<(), LaunchFault> {
    let user = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::User).build().map_err(invalid)?;
    linux.namespaces_mut().as_mut().expect("the base has namespaces").push(user);
    let mapping = LinuxIdMappingBuilder::default().container_id(0_u32).host_id(first).size(CONTAINER_USERS);
    let mapping: LinuxIdMapping = mapping.build().map_err(invalid)?;
    linux.set_uid_mappings(Some(vec![mapping]));
    linux.set_gid_mappings(Some(vec![mapping]));
    Ok(())
}

fn seccomp() -> LinuxSeccomp {
    let mut profile: LinuxSeccomp = serde_json::from_str(SECCOMP).expect("bundles/seccomp.json is a valid profile");
    // Only the host's own 64-bit calls: what is not named here (32-bit, x32) is another table of the same calls.
    profile.set_architectures(match std::env::consts::ARCH {
        "x86_64" => Some(vec![Arch::ScmpArchX86_64]),
        "aarch64" => Some(vec![Arch::ScmpArchAarch64]),
        _ => None,
    });
    profile
}

fn invalid(error: impl std::fmt::Display) -> LaunchFault {
    fault(LaunchFaultKind::Internal, "building the spec", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::container::account::{self, Unlisted};
    use crate::sandbox::container::plan::Users;
    use crate::sandbox::host::probe::trivial;
    use oci_spec::image::ConfigBuilder;
    use oci_spec::runtime::LinuxSeccompAction;
    use serde_json::{Value, json};

    fn definition() -> Definition {
        Definition {
            pull_policy: crate::model::definition::PullPolicy::Missing,
            environment: BTreeMap::from([("KEY".into(), "value=1".into())]),
            ..trivial(&["python3", "/app/s.py"])
        }
    }

    fn built(def: &Definition, image: Option<&ImageConfig>, kind: RuntimeKind) -> Value {
        let runtime =
            Runtime { provider: "x".into(), kind, binary: "/x".into(), args: vec![], users: Users::Same, polls: false };
        let account = account::resolve(user(def, image), "node:x:1000:1001::/home/node:", "", Unlisted::Root).unwrap();
        let volumes = [(PathBuf::from("/data"), PathBuf::from("/host/data"))];
        let setting = Setting {
            account: &account,
            rootfs: Path::new("/b/rootfs"),
            cgroup: Path::new("/stdiod-m/i-1"),
            volumes: &volumes,
            tmp: Path::new("/b/disk/tmp"),
            cgroup_counts_swap: true,
            network: Network::Own,
            first_user: Some(1 << 29),
        };
        serde_json::to_value(config(def, image, &runtime, &setting).unwrap()).unwrap()
    }

    #[test]
    fn nothing_is_granted_that_was_not_asked_for() {
        for kind in [RuntimeKind::Native, RuntimeKind::Gvisor] {
            let spec = built(&definition(), None, kind);
            let process = &spec["process"];
            assert_eq!(process["noNewPrivileges"], json!(true));
            assert_eq!(process["terminal"], json!(false));
            assert_eq!((&process["user"]["uid"], &process["user"]["gid"]), (&json!(65534), &json!(65534)));
            for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
                assert!(process["capabilities"][set].as_array().is_none_or(Vec::is_empty), "{set}");
            }
            assert_eq!(spec["root"]["readonly"], json!(true));
            let namespaces: Vec<_> = spec["linux"]["namespaces"].as_array().unwrap().iter().collect();
            for typ in ["pid", "mount", "ipc", "uts", "network"] {
                assert!(namespaces.iter().any(|n| n["type"] == typ && n.get("path").is_none()), "{typ}");
            }
            let hidden = spec["linux"]["maskedPaths"].as_array().unwrap();
            assert!(hidden.contains(&json!("/proc/kcore")));
            assert!(spec["linux"]["readonlyPaths"].as_array().unwrap().contains(&json!("/proc/sys")));
            let env = process["env"].as_array().unwrap();
            assert_eq!(env.len(), 3, "PATH, HOME and what was asked: {env:?}");
            assert!(env.contains(&json!("KEY=value=1")));
        }
    }

    #[test]
    fn limits_are_written_as_the_kernel_counts_them() {
        let resources = built(&definition(), None, RuntimeKind::Native)["linux"]["resources"].clone();
        assert_eq!(resources["memory"], json!({ "limit": 512 << 20, "swap": 512 << 20 }));
        assert_eq!(resources["cpu"], json!({ "quota": 50_000, "period": 100_000 }));
        assert_eq!(resources["pids"]["limit"], json!(256));
        let gvisor = built(&definition(), None, RuntimeKind::Gvisor);
        assert_eq!(gvisor["linux"]["resources"]["pids"]["limit"], json!(768));
        let mut tiny = definition();
        tiny.resource_limits.cpu_milli = 1;
        assert_eq!(built(&tiny, None, RuntimeKind::Native)["linux"]["resources"]["cpu"]["quota"], json!(1000));
    }

    #[test]
    fn only_native_runtimes_get_a_user_namespace() {
        let native = built(&definition(), None, RuntimeKind::Native)["linux"].clone();
        assert_eq!(native["uidMappings"], json!([{"containerID": 0, "hostID": 1 << 29, "size": 1 << 20}]));
        assert_eq!(native["gidMappings"], native["uidMappings"]);
        assert!(native["namespaces"].as_array().unwrap().contains(&json!({"type": "user"})));
        assert!(built(&definition(), None, RuntimeKind::Gvisor)["linux"].get("uidMappings").is_none());
    }

    #[test]
    fn only_native_runtimes_get_the_seccomp_profile() {
        assert!(built(&definition(), None, RuntimeKind::Gvisor)["linux"].get("seccomp").is_none());
        let profile = seccomp();
        assert_eq!(profile.default_action(), LinuxSeccompAction::ScmpActErrno);
        let allowed = |name: &str| {
            profile.syscalls().iter().flatten().any(|rule| {
                rule.action() == LinuxSeccompAction::ScmpActAllow
                    && rule.args().is_none()
                    && rule.names().iter().any(|n| n == name)
            })
        };
        for name in ["read", "execve", "futex", "epoll_pwait", "openat", "mmap", "statx", "getrandom", "rseq"] {
            assert!(allowed(name), "{name}");
        }
        for name in [
            "mount",
            "umount2",
            "pivot_root",
            "ptrace",
            "kexec_load",
            "bpf",
            "perf_event_open",
            "keyctl",
            "add_key",
            "init_module",
            "reboot",
            "swapon",
            "setns",
            "unshare",
            "clone",
            "clone3",
            "open_by_handle_at",
            "userfaultfd",
            "io_uring_setup",
            "process_vm_readv",
            "quotactl",
            "acct",
            "iopl",
        ] {
            assert!(!allowed(name), "{name}");
        }
    }

    #[test]
    fn an_image_brings_its_command_environment_user_and_directory() {
        let image = ConfigBuilder::default()
            .entrypoint(vec!["/bin/run".to_owned()])
            .cmd(vec!["default".to_owned()])
            .env(vec!["PATH=/opt/bin".to_owned(), "KEY=image".to_owned(), "A=b".to_owned()])
            .user("node")
            .working_dir("/srv")
            .build()
            .unwrap();
        let mut def = definition();
        def.source = Source::Image("x".into());
        def.cmd.clear();
        let spec = built(&def, Some(&image), RuntimeKind::Native);
        assert_eq!(spec["process"]["args"], json!(["/bin/run", "default"]));
        assert_eq!(spec["process"]["cwd"], json!("/srv"));
        assert_eq!(spec["process"]["user"]["uid"], json!(1000));
        assert_eq!(
            spec["process"]["env"],
            json!(["A=b", "HOME=/home/node", "KEY=value=1", "PATH=/opt/bin"]),
            "the definition's word is the last"
        );
        assert_eq!(spec["root"]["readonly"], json!(false));
        def.cmd = vec!["other".into()];
        assert_eq!(built(&def, Some(&image), RuntimeKind::Native)["process"]["args"], json!(["/bin/run", "other"]));
        def.cmd.clear();
        assert!(command(&def, None).is_err());
    }

    #[test]
    fn uv_without_a_network_is_content_with_its_cache() {
        let mut def = definition();
        let offline = |def: &Definition| {
            let spec = built(def, None, RuntimeKind::Native);
            spec["process"]["env"].as_array().unwrap().contains(&json!("UV_OFFLINE=1"))
        };
        assert!(!offline(&def));
        def.environment.insert(UV_CACHE.into(), "/cache/uv".into());
        assert!(offline(&def));
        def.environment.insert(UV_OFFLINE.into(), "0".into());
        assert!(!offline(&def), "the definition's word is the last");
    }

    #[test]
    fn volumes_are_bound_without_devices_or_setuid() {
        let spec = built(&definition(), None, RuntimeKind::Gvisor);
        let data = spec["mounts"].as_array().unwrap().iter().find(|m| m["destination"] == "/data").unwrap().clone();
        assert_eq!(data["source"], json!("/host/data"));
        assert_eq!(data["options"], json!(["bind", "rw", "nosuid", "nodev"]));
    }
}
