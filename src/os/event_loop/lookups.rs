//! Whatever must be asked of the disk while the daemon runs: is an image here, is a network configured, what does the
//! configuration say now, what does an instance use. It also writes down what is counted and reads documents that are
//! imported, which is long. A thread of its own looks; the loop hands it questions, never waits
//! for it, and hears the answers when the thread rings. Invariant: every question is answered once, in their order.

use crate::api::import::Read;
use crate::api::import::body::{Candidate, Document};
use crate::api::metrics;
use crate::config::Config;
use crate::ids::{ConnId, PullId};
use crate::limits::{LOOK_UP_KEPT, LOOK_UP_KEPT_MAX, LOOK_UPS_AT_ONCE};
use crate::model::definition::{Definition, PullPolicy, Source};
use crate::model::fault::{Code, Fault};
use crate::model::metrics::Metrics;
use crate::model::status::Usage;
use crate::sandbox::container::network;
use crate::sandbox::container::plan::{Layout, Networking, Runtime};
use crate::sandbox::host::cgroup::CgroupFiles;
use crate::sandbox::host::probe;
use crate::sandbox::image::Images;
use crate::sandbox::image::registry::reference::reference;
use crate::sandbox::image::registry::{PullError, Registries};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What a definition asks of the disk. Two that ask the same have the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wants {
    image: Option<(String, PullPolicy)>,
    network: Option<String>,
}

impl Wants {
    /// None: nothing that anybody must look for.
    pub fn of(definition: &Definition) -> Option<Wants> {
        let image = match &definition.source {
            Source::Image(name) => Some((name.clone(), definition.pull_policy)),
            Source::HostRootfs => None,
        };
        let network = definition.network.clone().filter(|name| !network::is_built_in(name));
        (image.is_some() || network.is_some()).then_some(Wants { image, network })
    }
}

pub enum Question {
    /// May a definition be stored that wants this? A client waits for it.
    Definition {
        conn: ConnId,
        wants: Wants,
    },
    /// May all that a document names be stored? A client waits for it.
    Import {
        conn: ConnId,
        ticket: u64,
        document: Box<Document>,
    },
    Image {
        pull: PullId,
        image: String,
    },
    Usage {
        conn: ConnId,
        cgroup: Box<CgroupFiles>,
    },
    /// Everything that is counted, to be written down.
    Metrics {
        conn: ConnId,
        metrics: Box<Metrics>,
    },
    /// SIGHUP.
    Config,
    /// No question but a note, for the next start: these work here. There is no answer.
    Remember {
        runtimes: Vec<Runtime>,
    },
}

pub enum Finding {
    /// A fault: it may not. `here`: its image is on this disk.
    Definition {
        conn: ConnId,
        wants: Wants,
        here: bool,
        fault: Option<Fault>,
    },
    Import {
        conn: ConnId,
        ticket: u64,
        read: Result<Vec<Candidate>, Fault>,
    },
    Image {
        pull: PullId,
        here: Result<bool, String>,
    },
    /// None: its cgroup is gone.
    Usage {
        conn: ConnId,
        usage: Option<Usage>,
    },
    Metrics {
        conn: ConnId,
        text: Vec<u8>,
    },
    Config(Result<Box<Config>, String>),
}

/// Where to look.
pub struct WhereToLook {
    pub layout: Layout,
    pub registries: Registries,
    pub networking: Networking,
    pub config_file: Option<PathBuf>,
}

pub struct Lookups {
    questions: SyncSender<Question>,
    found: Receiver<Finding>,
    /// For which the channel has no room. Clients wait for some of them and pulls for the others, so there are no more
    /// than there can be of those.
    waiting: VecDeque<Question>,
    /// Asked and not answered.
    open: usize,
    /// Images that a registration has found, and until when that is good: its start need not look again. One that is
    /// removed in between is missed by the launcher, which claims it under a lock.
    here: HashMap<String, u64>,
}

impl Lookups {
    pub fn spawn(places: WhereToLook, wake: impl Fn() + Send + 'static) -> io::Result<Lookups> {
        let (questions, todo) = sync_channel(LOOK_UPS_AT_ONCE);
        // The loop takes all there is whenever it is rung, so a thread that waits for room here waits for one turn.
        let (tell, found) = sync_channel(LOOK_UPS_AT_ONCE);
        std::thread::Builder::new().name("look-up".to_string()).spawn(move || {
            let images = Images::of(&places.layout);
            while let Ok(question) = todo.recv() {
                if let Some(answer) = places.look(&images, question) {
                    if tell.send(answer).is_err() {
                        return;
                    }
                    wake();
                }
            }
        })?;
        Ok(Lookups { questions, found, waiting: VecDeque::new(), open: 0, here: HashMap::new() })
    }

    pub fn ask(&mut self, question: Question) {
        self.open += usize::from(!matches!(question, Question::Remember { .. }));
        self.waiting.push_back(question);
        self.send();
    }

    fn send(&mut self) {
        while let Some(question) = self.waiting.pop_front() {
            if let Err(e) = self.questions.try_send(question) {
                use std::sync::mpsc::TrySendError::{Disconnected, Full};
                let (Full(question) | Disconnected(question)) = e;
                return self.waiting.push_front(question);
            }
        }
    }

    /// The thread rang.
    pub fn heard(&mut self, now_ms: u64) -> Vec<Finding> {
        let found: Vec<Finding> = self.found.try_iter().collect();
        self.open -= found.len();
        for answer in &found {
            if let Finding::Definition { wants: Wants { image: Some((image, _)), .. }, here: true, .. } = answer {
                self.here.retain(|_, until_ms| now_ms < *until_ms);
                if self.here.len() < LOOK_UP_KEPT_MAX {
                    self.here.insert(image.clone(), now_ms + LOOK_UP_KEPT.as_millis() as u64);
                }
            }
        }
        self.send();
        found
    }

    /// Nobody waits for an answer.
    pub fn is_at_rest(&self) -> bool {
        self.open == 0 && self.waiting.is_empty()
    }

    /// A registration has just seen that it is here. Good for one start.
    pub fn has_seen(&mut self, image: &str, now_ms: u64) -> bool {
        self.here.remove(image).is_some_and(|until_ms| now_ms < until_ms)
    }
}

/// What of an image is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Good,
    /// It is here, and no key vouches for it: it has to come again.
    Unsigned,
    Not,
}

// --- the thread -----------------------------------------------------------------------------------------------------

impl WhereToLook {
    fn look(&self, images: &Images, question: Question) -> Option<Finding> {
        match question {
            Question::Definition { conn, wants } => {
                let (here, fault) = self.image(images, &wants);
                let fault = fault.or_else(|| self.missing_network(&wants));
                Some(Finding::Definition { conn, wants, here, fault })
            }
            Question::Import { conn, ticket, document } => {
                Some(Finding::Import { conn, ticket, read: self.candidates(images, &document) })
            }
            Question::Image { pull, image } => {
                let here = self.stored(images, &image).map(|found| found == Stored::Good).map_err(|e| e.to_string());
                Some(Finding::Image { pull, here })
            }
            Question::Usage { conn, cgroup } => Some(Finding::Usage { conn, usage: cgroup.usage() }),
            Question::Metrics { conn, metrics } => Some(Finding::Metrics { conn, text: metrics::render(&metrics) }),
            Question::Config => {
                let read = Config::load(self.config_file.as_deref());
                Some(Finding::Config(read.map(Box::new).map_err(|e| e.to_string())))
            }
            Question::Remember { runtimes } => {
                probe::remember(&self.layout, &runtimes);
                None
            }
        }
    }

    fn candidates(&self, images: &Images, document: &Document) -> Result<Vec<Candidate>, Fault> {
        let mut candidates = document.candidates()?;
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.entry.disabled) {
            let Read::Hosted(definition) = &candidate.read else { continue };
            let Some(wants) = Wants::of(definition) else { continue };
            let (_, fault) = self.image(images, &wants);
            candidate.missing = fault.or_else(|| self.missing_network(&wants));
        }
        Ok(candidates)
    }

    /// Is it here? And a fault if it is not and cannot come: a definition must not be stored for that. What a registry has
    /// is found out by the start.
    fn image(&self, images: &Images, wants: &Wants) -> (bool, Option<Fault>) {
        let Some((name, policy)) = &wants.image else { return (false, None) };
        let can_come = match policy {
            PullPolicy::Missing | PullPolicy::Always => {
                reference(name, self.registries.default.as_deref()).map(|r| r.is_some())
            }
            PullPolicy::Never => Ok(false),
        };
        let found = self.stored(images, name);
        let here = matches!(found, Ok(Stored::Good));
        let why = match (found, can_come, policy) {
            (Ok(Stored::Good), _, PullPolicy::Missing | PullPolicy::Never) | (Ok(_), Ok(true), _) => {
                return (here, None);
            }
            (Ok(_), Ok(false), PullPolicy::Missing | PullPolicy::Always) => {
                PullError::NoRegistry { image: name.clone() }.to_string()
            }
            (Ok(Stored::Unsigned), Ok(false), PullPolicy::Never) => {
                format!("{name} is here without a signature of `image_keys`, and pull_policy is never")
            }
            (Ok(Stored::Not), Ok(false), PullPolicy::Never) => {
                format!(
                    "{name} is not here, and pull_policy is never; `stdiod image import PATH --name {name}` brings it"
                )
            }
            (Err(e), _, _) => e.to_string(),
            (_, Err(e), _) => e.to_string(),
        };
        (here, Some(Fault::new(Code::ImageNotFound, format!("image: {why}")).with("field", "image")))
    }

    /// Is it here, and may it be run?
    fn stored(&self, images: &Images, name: &str) -> Result<Stored, PullError> {
        let Registries { default, trust, .. } = &self.registries;
        trust.admits(name, default.as_deref())?;
        match images.resolve(name)? {
            None => Ok(Stored::Not),
            Some(image) => Ok(match trust.vouches_for(&image, default.as_deref())? {
                true => Stored::Good,
                false => Stored::Unsigned,
            }),
        }
    }

    /// Nor for a network that nobody has configured.
    fn missing_network(&self, wants: &Wants) -> Option<Fault> {
        let name = wants.network.as_ref().filter(|name| !network::exists(&self.networking, name))?;
        let dirs: Vec<String> = self.networking.conf_dirs.iter().map(|dir| dir.display().to_string()).collect();
        let why = format!("there is no network {name}: no CNI configuration in {} has this name", dirs.join(" or "));
        Some(Fault::field("network", why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::definition::fields::from_fields;
    use serde_json::{Value, json};
    use std::sync::mpsc;
    use std::time::Duration;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("stdiod-lookups-{}-{name}", std::process::id()));
            std::fs::create_dir_all(path.join("networks")).expect("a place");
            Scratch(path)
        }

        /// With a bell that the thread rings.
        fn lookups(&self) -> (Lookups, mpsc::Receiver<()>) {
            let networking = Networking { conf_dirs: vec![self.0.join("networks")], ..Networking::default() };
            let (layout, registries) = (self.layout(), Registries::default());
            let (ring, bell) = mpsc::channel();
            let places = WhereToLook { layout, registries, networking, config_file: Some(self.0.join("none.toml")) };
            (Lookups::spawn(places, move || _ = ring.send(())).expect("a thread"), bell)
        }

        fn layout(&self) -> Layout {
            Layout { data_dir: self.0.clone(), mark: "x".into() }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn wants(mut fields: Value) -> Option<Wants> {
        fields["name"] = json!("a");
        let Value::Object(fields) = fields else { panic!("an object") };
        Wants::of(&from_fields(fields).expect("a valid definition"))
    }

    fn next(lookups: &mut Lookups, bell: &mpsc::Receiver<()>) -> Finding {
        bell.recv_timeout(Duration::from_secs(10)).expect("it rings");
        lookups.heard(0).pop().expect("an answer")
    }

    #[test]
    fn what_needs_no_look_is_not_asked_for() {
        assert_eq!(wants(json!({"rootfs": "host", "cmd": ["x"]})), None);
        assert_eq!(wants(json!({"rootfs": "host", "cmd": ["x"], "network": "bridge"})), None);
        assert!(wants(json!({"rootfs": "host", "cmd": ["x"], "network": "lan"})).is_some());
        assert!(wants(json!({"image": "a:1"})).is_some());
    }

    #[test]
    fn an_image_and_a_network_are_looked_for_elsewhere_and_the_start_need_not_look_again() {
        let scratch = Scratch::new("places");
        let (mut lookups, bell) = scratch.lookups();
        let refs = scratch.layout().images_dir().join("refs");
        std::fs::create_dir_all(&refs).expect("a place");
        std::fs::write(scratch.0.join("networks/lan.conf"), r#"{"name": "lan", "type": "bridge"}"#).expect("written");
        let image = "example.test/a:1";
        let never = || wants(json!({"image": image, "pull_policy": "never", "network": "lan"})).expect("both");
        let ask = |wants: Wants, lookups: &mut Lookups| {
            lookups.ask(Question::Definition { conn: ConnId(1), wants });
            match next(lookups, &bell) {
                Finding::Definition { here, fault, .. } => (here, fault.map(|fault| fault.code)),
                Finding::Import { .. }
                | Finding::Image { .. }
                | Finding::Usage { .. }
                | Finding::Metrics { .. }
                | Finding::Config(_) => {
                    panic!("nobody has asked for that")
                }
            }
        };
        assert_eq!(ask(never(), &mut lookups), (false, Some(Code::ImageNotFound)));
        assert!(!lookups.has_seen(image, 0));

        let slug = crate::sandbox::container::within::slug(std::path::Path::new(image));
        let record = json!({"name": image, "digest": "sha256:0", "layers": [], "config": {}, "packed_bytes": 0,
            "imported_unix_ms": 0});
        std::fs::write(refs.join(format!("{slug}.json")), record.to_string()).expect("written");
        assert_eq!(ask(never(), &mut lookups), (true, None));
        assert!(lookups.has_seen(image, 0) && !lookups.has_seen(image, 0), "once");
        assert_eq!(ask(never(), &mut lookups), (true, None));
        assert!(!lookups.has_seen(image, LOOK_UP_KEPT.as_millis() as u64), "and not for long");

        let nowhere = wants(json!({"image": image, "network": "nowhere"})).expect("both");
        assert_eq!(ask(nowhere, &mut lookups), (true, Some(Code::InvalidRequest)));
    }

    #[test]
    fn more_questions_than_the_thread_can_hold_are_all_answered_in_their_order() {
        let scratch = Scratch::new("many");
        let (mut lookups, bell) = scratch.lookups();
        let all = 5 * LOOK_UPS_AT_ONCE as u64;
        for n in 0..all {
            lookups.ask(Question::Image { pull: PullId(n), image: "a:1".into() });
        }
        lookups.ask(Question::Config);
        let mut answered = 0;
        loop {
            bell.recv_timeout(Duration::from_secs(10)).expect("it rings");
            for found in lookups.heard(0) {
                match found {
                    Finding::Image { pull, here } => {
                        assert_eq!((pull, here), (PullId(answered), Ok(false)));
                        answered += 1;
                    }
                    Finding::Config(read) => {
                        assert!(read.is_err(), "there is no such file");
                        assert_eq!(answered, all);
                        return;
                    }
                    Finding::Definition { .. }
                    | Finding::Import { .. }
                    | Finding::Usage { .. }
                    | Finding::Metrics { .. } => {
                        panic!("nobody has asked for that")
                    }
                }
            }
        }
    }
}
