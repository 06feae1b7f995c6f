//! What a server of `npx` or `uvx` needs before its first start: the command that fetches its packages and does not run them, and
//! the one that runs them from the cache afterwards. Owns the reading of those programs' arguments; what it cannot read for
//! certain is no package, and starts as it is. Never looks at a disk.

use crate::model::definition::{Definition, Source};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// Fetches, and exits with 0 when everything is in the cache.
    pub command: Vec<String>,
    /// Starts the server and asks nobody for its packages.
    pub offline: Vec<String>,
}

/// How one of the programs takes its arguments.
struct Runner {
    program: &'static str,
    /// Words between the program and its options, where there are any.
    subcommands: &'static [&'static str],
    /// Where its cache is.
    cache: &'static str,
    /// Options with a value in the next word.
    valued: &'static [&'static str],
    /// Options without one.
    flags: &'static [&'static str],
    /// Those of `valued` that name the package, so that the first other word is a command of it.
    package: &'static [&'static str],
}

const NPM_VALUED: &[&str] = &["-p", "--package", "--registry", "--userconfig", "--cafile", "--loglevel", "--before"];
const NPM_FLAGS: &[&str] = &[
    "-y",
    "--yes",
    "-q",
    "--quiet",
    "-s",
    "--silent",
    "-d",
    "--verbose",
    "-f",
    "--force",
    "--prefer-offline",
    "--prefer-online",
    "--ignore-scripts",
    "--ignore-existing",
    "--legacy-peer-deps",
    "--no-fund",
    "--no-audit",
    "--no-update-notifier",
    "--no-strict-ssl",
];
const NPM_PACKAGE: &[&str] = &["-p", "--package"];

const UV_VALUED: &[&str] = &[
    "--from",
    "--with",
    "-w",
    "--with-requirements",
    "-p",
    "--python",
    "--index",
    "--default-index",
    "--index-url",
    "-i",
    "--extra-index-url",
    "--find-links",
    "-f",
    "--index-strategy",
    "--prerelease",
    "--resolution",
    "--exclude-newer",
    "--constraints",
    "-c",
    "--overrides",
    "--allow-insecure-host",
    "--link-mode",
    "--config-file",
    "--color",
];
const UV_FLAGS: &[&str] = &[
    "-q",
    "--quiet",
    "-v",
    "--verbose",
    "--native-tls",
    "--system-certs",
    "--isolated",
    "--no-config",
    "--no-progress",
    "--no-build",
    "--no-binary",
    "--no-sources",
    "--no-index",
    "--compile-bytecode",
    "--managed-python",
    "--no-managed-python",
    "--no-python-downloads",
    "--no-env-file",
];
const UV_PACKAGE: &[&str] = &["--from"];

const RUNNERS: [Runner; 4] = [
    npm("npx", &[]),
    npm("npm", &["exec", "x"]),
    Runner {
        program: "uvx",
        subcommands: &[],
        cache: "UV_CACHE_DIR",
        valued: UV_VALUED,
        flags: UV_FLAGS,
        package: UV_PACKAGE,
    },
    Runner {
        program: "uv",
        subcommands: &["tool run"],
        cache: "UV_CACHE_DIR",
        valued: UV_VALUED,
        flags: UV_FLAGS,
        package: UV_PACKAGE,
    },
];

const fn npm(program: &'static str, subcommands: &'static [&'static str]) -> Runner {
    let (valued, flags, package) = (NPM_VALUED, NPM_FLAGS, NPM_PACKAGE);
    Runner { program, subcommands, cache: "NPM_CONFIG_CACHE", valued, flags, package }
}

/// None: it is made of no packages that are fetched, or what it fetches would not be there the next time.
pub fn of(definition: &Definition) -> Option<Install> {
    if definition.source != Source::HostRootfs {
        return None;
    }
    let (program, words) = definition.cmd.split_first()?;
    let name = program.rsplit('/').next().unwrap_or(program);
    let runner = RUNNERS.iter().find(|runner| runner.program == name)?;
    if !keeps(definition, runner.cache) {
        return None;
    }
    let (subcommand, words) = runner.subcommand(words)?;
    let read = runner.read(words)?;
    let begin = || std::iter::once(program).chain(subcommand).cloned();
    let mut command: Vec<String> = begin().collect();
    match runner.cache {
        "NPM_CONFIG_CACHE" => {
            command.push("--yes".to_string());
            command.extend(read.options.iter().cloned());
            command.extend(read.package.as_deref().map(|package| format!("--package={package}")));
            command.extend(["-c", "true"].map(String::from));
        }
        _ => {
            command.extend(read.options.iter().cloned());
            if let Some(package) = &read.package {
                command.extend(["--from".to_string(), uv_requirement(package)]);
            }
            command.push("true".to_string());
        }
    }
    // What is no plain name of a registry (an address, a repository, a directory) is asked for at every start.
    let from_registry = read.named.iter().all(|package| is_of_registry(package));
    let cut_off = definition.network.as_deref() == Some("none");
    let offline = match from_registry || cut_off {
        true => begin().chain(std::iter::once("--offline".to_string())).chain(words.iter().cloned()).collect(),
        false => definition.cmd.clone(),
    };
    Some(Install { command, offline })
}

/// Is the cache in a volume that may be written to?
fn keeps(definition: &Definition, variable: &str) -> bool {
    let Some(cache) = definition.environment.get(variable) else { return false };
    let covers = |volume: &String| {
        let inside = cache.strip_prefix(volume.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        inside && !definition.read_only_volumes.contains(volume)
    };
    definition.volumes.iter().any(covers)
}

struct Read {
    /// As they were given, up to the first word that is none.
    options: Vec<String>,
    /// That word, if it is what is fetched.
    package: Option<String>,
    /// Everything that is fetched.
    named: Vec<String>,
}

impl Runner {
    /// The words of a subcommand, if this program is nothing without one.
    fn subcommand<'a>(&self, words: &'a [String]) -> Option<(&'a [String], &'a [String])> {
        if self.subcommands.is_empty() {
            return Some((&[], words));
        }
        self.subcommands.iter().find_map(|subcommand| {
            let count = subcommand.split(' ').count();
            let given = words.get(..count)?;
            subcommand.split(' ').eq(given.iter().map(String::as_str)).then(|| words.split_at(count))
        })
    }

    /// None: there is an option that is not known, and so it is not known either which word is the package.
    fn read(&self, words: &[String]) -> Option<Read> {
        let mut read = Read { options: Vec::new(), package: None, named: Vec::new() };
        let mut words = words.iter();
        let mut first = None;
        while let Some(word) = words.next() {
            if word == "--" {
                first = words.next();
                break;
            }
            if !word.starts_with('-') {
                first = Some(word);
                break;
            }
            read.options.push(word.clone());
            let (option, inline) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (word.as_str(), None),
            };
            if self.valued.contains(&option) {
                let value = match inline {
                    Some(value) => value,
                    None => {
                        let value = words.next()?;
                        read.options.push(value.clone());
                        value
                    }
                };
                if self.package.contains(&option) {
                    read.named.push(value.to_string());
                }
            } else if inline.is_some() || !self.flags.contains(&option) {
                return None;
            }
        }
        match first {
            Some(word) if read.named.is_empty() => {
                read.named.push(word.clone());
                read.package = Some(word.clone());
            }
            // A command of the package that was named.
            Some(_) => {}
            None => return None,
        }
        Some(read)
    }
}

/// `name@1.2` is how uvx takes a version, and no requirement.
fn uv_requirement(package: &str) -> String {
    match package.split_once('@') {
        Some((name, "latest")) if is_of_registry(package) => name.to_string(),
        Some((name, version)) if is_of_registry(package) => format!("{name}=={version}"),
        Some(_) | None => package.to_string(),
    }
}

fn is_of_registry(package: &str) -> bool {
    let scoped = package.strip_prefix('@').and_then(|rest| rest.split_once('/'));
    let name = scoped.map_or(package, |(_, name)| name);
    !name.starts_with('.') && !name.contains(['/', ':', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::definition::fields::parse;
    use serde_json::json;

    fn install(command: &str, network: Option<&str>) -> Option<(String, String)> {
        let words: Vec<&str> = command.split(' ').collect();
        let mut body = json!({"name": "a", "command": words[0], "args": words[1..]});
        body["network"] = json!(network);
        let found = of(&parse(body.to_string().as_bytes()).unwrap())?;
        Some((found.command.join(" "), found.offline.join(" ")))
    }

    #[test]
    fn the_package_is_fetched_and_not_run_and_then_run_and_not_fetched() {
        for (command, fetch, offline) in [
            ("npx -y p /data", "npx --yes -y --package=p -c true", "npx --offline -y p /data"),
            ("npx @s/p@1.2 --port 3", "npx --yes --package=@s/p@1.2 -c true", "npx --offline @s/p@1.2 --port 3"),
            (
                "npx -y -p p@1 --package=q cmd x",
                "npx --yes -y -p p@1 --package=q -c true",
                "npx --offline -y -p p@1 --package=q cmd x",
            ),
            ("/usr/bin/npx -y -- p", "/usr/bin/npx --yes -y --package=p -c true", "/usr/bin/npx --offline -y -- p"),
            ("npm exec -y p", "npm exec --yes -y --package=p -c true", "npm exec --offline -y p"),
            ("uvx p==1 --x", "uvx --from p==1 true", "uvx --offline p==1 --x"),
            ("uvx p@1.2", "uvx --from p==1.2 true", "uvx --offline p@1.2"),
            ("uvx p@latest", "uvx --from p true", "uvx --offline p@latest"),
            (
                "uvx --with q -p 3.12 --from p[x] cmd a",
                "uvx --with q -p 3.12 --from p[x] true",
                "uvx --offline --with q -p 3.12 --from p[x] cmd a",
            ),
            ("/opt/uv tool run p", "/opt/uv tool run --from p true", "/opt/uv tool run --offline p"),
        ] {
            let found = install(command, None).unwrap_or_else(|| panic!("{command}"));
            assert_eq!((found.0.as_str(), found.1.as_str()), (fetch, offline), "{command}");
        }
    }

    #[test]
    fn what_comes_from_elsewhere_is_asked_for_again_unless_there_is_nobody_to_ask() {
        for command in ["npx -y github:a/b", "npx -y ./x", "npx -y https://h/x.tgz", "uvx --from git+https://h/x cmd"] {
            assert_eq!(install(command, None).unwrap().1, command);
            assert!(install(command, Some("none")).unwrap().1.contains(" --offline "), "{command}");
        }
    }

    #[test]
    fn what_cannot_be_read_for_certain_starts_as_it_is() {
        for command in [
            "npx",
            "npx -y",
            "npx -c true",
            "npx --offline p",
            "npx --unheard-of p",
            "npx -p",
            "npm install p",
            "npm",
            "uv run p",
            "uvx --no-cache p",
            "bunx p",
            "node x.js",
        ] {
            assert_eq!(install(command, None), None, "{command}");
        }
    }

    #[test]
    fn what_is_not_kept_need_not_be_fetched_before() {
        let read = |more: serde_json::Value| {
            let mut body = json!({"name": "a", "command": "npx", "args": ["p"]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(&parse(body.to_string().as_bytes()).unwrap())
        };
        assert!(read(json!({"environment": {"NPM_CONFIG_CACHE": "/tmp/npm"}})).is_none());
        assert!(read(json!({"environment": {"NPM_CONFIG_CACHE": "/data/npm"}, "volumes": ["/data"]})).is_some());
        assert!(read(json!({"volumes": ["/cache:ro"]})).is_none());
    }
}
