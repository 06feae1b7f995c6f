//! What instances use, for whoever asks: the meter's last look, or a fresh one at their cgroups.

use super::Instances;
use crate::ids::InstanceId;
use crate::model::status::Usage;
use crate::sandbox::host::cgroup::CgroupFiles;

impl Instances {
    /// What an instance uses: the meter's last look.
    pub fn usage(&self, instance: InstanceId) -> Option<Usage> {
        self.meter.usage(instance)
    }

    /// Where that is to be seen; none: nowhere.
    pub fn cgroup(&self, instance: InstanceId) -> Option<&CgroupFiles> {
        self.map.get(&instance)?.cgroup.as_ref()
    }

    /// A fresh look at its cgroup, with what only the meter knows.
    pub fn complete(&self, instance: InstanceId, fresh: Usage) -> Usage {
        let last = self.meter.usage(instance).unwrap_or_default();
        Usage { cpu_percent: last.cpu_percent, disk_bytes: last.disk_bytes, ..fresh }
    }
}
