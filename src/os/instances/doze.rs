//! Instances that are frozen while nobody uses them. Who may be is the core's to say; here is how, and that everybody is thawed
//! before anything is done with it. Invariant: nobody writes to, signals or ends an instance that is frozen.

use crate::ids::InstanceId;
use crate::os::instances::Instances;
use crate::sandbox::host::cgroup::{CgroupFiles, Freezer};
use std::io;
use std::time::Instant;

/// Those that dozed and do so no more, and after how many milliseconds they ran again; none: it could not be frozen.
pub(super) type Woken = Vec<(InstanceId, Option<u64>)>;

/// Is it frozen?
#[derive(Default)]
pub(super) enum Doze {
    #[default]
    Never,
    /// It was, and can be again.
    Awake(Freezer),
    Frozen(Freezer),
}

impl Doze {
    fn begin(self, cgroup: Option<&CgroupFiles>) -> io::Result<Doze> {
        let freezer = match self {
            Doze::Awake(freezer) | Doze::Frozen(freezer) => freezer,
            Doze::Never => cgroup.ok_or_else(|| io::Error::other("it has no cgroup"))?.freezer()?,
        };
        freezer.freeze()?;
        Ok(Doze::Frozen(freezer))
    }

    /// As the program before has left it: the kernel keeps one frozen, whoever writes to it next.
    pub(super) fn adopt(is_frozen: bool, cgroup: Option<&CgroupFiles>, id: InstanceId, woken: &mut Woken) -> Doze {
        let Some(cgroup) = cgroup.filter(|_| is_frozen) else { return Doze::Never };
        match cgroup.freezer() {
            Ok(freezer) => Doze::Frozen(freezer),
            Err(e) => {
                // Its cgroup is gone, and so is whatever was in it.
                log::error!("instance={id} was frozen, and what thaws it is gone: {e}");
                woken.push((id, None));
                Doze::Never
            }
        }
    }

    /// Before anything is done with it.
    pub(super) fn end(&mut self, id: InstanceId, woken: &mut Woken) {
        if matches!(self, Doze::Frozen(_)) {
            *self = std::mem::take(self).thawed(id, woken);
        }
    }

    fn thawed(self, id: InstanceId, woken: &mut Woken) -> Doze {
        let Doze::Frozen(freezer) = self else { return self };
        let began = Instant::now();
        if let Err(e) = freezer.thaw() {
            // Its cgroup is gone, and so is whatever was in it; or it is never heard again, and looked after as that.
            log::error!("instance={id} cannot be thawed: {e}");
        }
        woken.push((id, Some(began.elapsed().as_millis() as u64)));
        Doze::Awake(freezer)
    }
}

impl Instances {
    /// Freezes it until something is to be done with it.
    pub fn doze(&mut self, instance: InstanceId) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        match std::mem::take(&mut hosted.doze).begin(hosted.cgroup.as_ref()) {
            Ok(doze) => hosted.doze = doze,
            Err(e) => {
                log::warn!("instance={instance} cannot be frozen, and stays awake: {e}");
                self.woken.push((instance, None));
            }
        }
    }

    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    pub fn take_woken(&mut self) -> Vec<(InstanceId, Option<u64>)> {
        std::mem::take(&mut self.woken)
    }
}
