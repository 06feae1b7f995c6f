//! Who runs inside a container: a uid, a gid and a home. PURE: reads the text of passwd and group files, never the
//! files. An image's own files decide for an image, the ones written by `rootfs` for the host's view.

use crate::limits::{CONTAINER_USERS, HOST_VIEW_IDS};
use crate::model::definition::Source;
use crate::model::instance::{LaunchFault, LaunchFaultKind};

/// nobody: owns nothing, on the host or in any sane image.
pub const NOBODY: u32 = 65534;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups of a user that is named.
    pub groups: Vec<u32>,
    /// From passwd; none if the user is not there.
    pub home: Option<String>,
}

impl Account {
    /// The numbers count, whoever gave them and by whatever name. On the host's files its own root and services are
    /// nobody that a server may be: gVisor compares numbers of inside with owners of outside.
    pub fn check(&self, source: &Source) -> Result<(), LaunchFault> {
        let allowed = match source {
            Source::HostRootfs => HOST_VIEW_IDS,
            Source::Image(_) => 0..=CONTAINER_USERS - 1,
        };
        let ids = [self.uid, self.gid].into_iter().chain(self.groups.iter().copied());
        match ids.into_iter().find(|id| !allowed.contains(id)) {
            None => Ok(()),
            Some(id) => {
                let Account { uid, gid, .. } = self;
                let (first, last) = (allowed.start(), allowed.end());
                let message = format!("the user {uid}:{gid}: {id} is not in {first}..{last}; give others in `user`");
                Err(LaunchFault { kind: LaunchFaultKind::Rootfs, message })
            }
        }
    }
}

/// The group of a number that passwd does not know, if none is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// As everywhere with images, many of which are made for it.
    Root,
    /// The same number.
    Own,
}

/// `user`, `uid`, `user:group`, `uid:gid` and the mixed forms, as in an image's USER.
pub fn resolve(asked: Option<&str>, passwd: &str, group: &str, unlisted: Unlisted) -> Result<Account, LaunchFault> {
    let asked = asked.unwrap_or("");
    let (user, group_asked) = match asked.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (asked, None),
    };
    let default = NOBODY.to_string();
    let user = if user.is_empty() { default.as_str() } else { user };
    let known = passwd.lines().filter_map(Entry::parse).find(|entry| match user.parse::<u32>() {
        Ok(uid) => entry.uid == uid,
        Err(_) => entry.name == user,
    });
    let uid = match (user.parse::<u32>(), &known) {
        (Ok(uid), _) => uid,
        (Err(_), Some(entry)) => entry.uid,
        (Err(_), None) => return Err(unknown("user", user)),
    };
    let gid = match (group_asked, &known) {
        (Some(name), _) => group_id(name, group).ok_or_else(|| unknown("group", name))?,
        (None, Some(entry)) => entry.gid,
        // Only nobody is known without a passwd.
        (None, None) if uid == NOBODY => NOBODY,
        (None, None) => match unlisted {
            Unlisted::Root => 0,
            Unlisted::Own => uid,
        },
    };
    let groups = match (&known, group_asked) {
        (Some(entry), None) => member_of(entry.name, group).filter(|g| *g != gid).collect(),
        (Some(_) | None, _) => Vec::new(),
    };
    Ok(Account {
        uid,
        gid,
        groups,
        home: known.map(|entry| entry.home.to_owned()).filter(|home| home.starts_with('/')),
    })
}

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl Entry<'_> {
    fn parse(line: &str) -> Option<Entry<'_>> {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Entry { name, uid, gid, home: fields.nth(1).unwrap_or("") })
    }
}

fn group_id(asked: &str, group: &str) -> Option<u32> {
    if let Ok(gid) = asked.parse() {
        return Some(gid);
    }
    group.lines().map(|line| line.split(':')).find_map(|mut f| (f.next()? == asked).then(|| f.nth(1)?.parse().ok())?)
}

fn member_of<'a>(user: &'a str, group: &'a str) -> impl Iterator<Item = u32> + 'a {
    group.lines().filter_map(move |line| {
        let mut fields = line.split(':').skip(2);
        let (gid, members) = (fields.next()?.parse().ok()?, fields.next()?);
        members.split(',').any(|member| member == user).then_some(gid)
    })
}

fn unknown(what: &str, name: &str) -> LaunchFault {
    LaunchFault { kind: LaunchFaultKind::Rootfs, message: format!("{what} {name:?} is not known in the container") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\nbroken line\nnode:x:1000:1001::/home/node:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nnode:x:1001:\naudio:x:29:other,node\nwheel:x:10:node\n";

    fn of(asked: &str) -> Account {
        resolve(Some(asked), PASSWD, GROUP, Unlisted::Root).unwrap()
    }

    #[test]
    fn every_form_of_an_images_user_is_understood() {
        let node = Account { uid: 1000, gid: 1001, groups: vec![29, 10], home: Some("/home/node".into()) };
        assert_eq!(of("node"), node);
        assert_eq!(of("1000"), node);
        assert_eq!(of("node:audio"), Account { gid: 29, groups: vec![], ..node.clone() });
        assert_eq!(of("7:8"), Account { uid: 7, gid: 8, groups: vec![], home: None });
        assert_eq!(of("7").gid, 0);
        assert_eq!(resolve(Some("7"), PASSWD, GROUP, Unlisted::Own).unwrap().gid, 7);
        assert_eq!(of("root").uid, 0);
    }

    #[test]
    fn nobody_is_the_default_and_needs_no_passwd() {
        let nobody = Account { uid: NOBODY, gid: NOBODY, groups: vec![], home: None };
        for unlisted in [Unlisted::Root, Unlisted::Own] {
            assert_eq!(resolve(None, "", "", unlisted), Ok(nobody.clone()));
            assert_eq!(resolve(Some(""), PASSWD, GROUP, unlisted), Ok(nobody.clone()));
        }
    }

    #[test]
    fn a_name_that_is_nowhere_is_refused_by_name() {
        let refused = |asked| resolve(Some(asked), PASSWD, GROUP, Unlisted::Root).unwrap_err().message;
        assert!(refused("ghost").contains("ghost"));
        assert!(refused("node:ghosts").contains("ghosts"));
    }

    #[test]
    fn no_number_leaves_its_range_whoever_gave_it() {
        let (host, image) = (Source::HostRootfs, Source::Image("x".into()));
        let account = |uid, gid, groups: &[u32]| Account { uid, gid, groups: groups.to_vec(), home: None };
        for inside in [account(NOBODY, NOBODY, &[]), account(1000, CONTAINER_USERS - 1, &[1001])] {
            assert!(inside.check(&host).is_ok() && inside.check(&image).is_ok(), "{inside:?}");
        }
        for of_host in [account(0, 0, &[]), account(1000, 0, &[]), account(1000, 42, &[]), account(1000, 1000, &[0])] {
            assert!(of_host.check(&host).unwrap_err().message.contains("`user`") && of_host.check(&image).is_ok());
        }
        for beyond in [account(CONTAINER_USERS, 0, &[]), account(0, u32::MAX, &[]), account(0, 0, &[CONTAINER_USERS])] {
            assert!(beyond.check(&host).is_err() && beyond.check(&image).is_err(), "{beyond:?}");
        }
    }
}
