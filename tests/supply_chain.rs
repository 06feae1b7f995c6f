//! What is linked into the daemon: licences, crates that are not wanted, two versions of one, and where all of it comes from,
//! by `deny.toml`. And the list of it that goes with a package.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::Table;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// An expression is a few words; whoever nests it deeper has made a mistake.
const DEPTH_MAX: usize = 8;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rules() -> Table {
    std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml").parse().expect("TOML")
}

fn words(rules: &Table, table: &str, key: &str) -> Vec<String> {
    let listed = rules[table][key].as_array().expect("a list");
    let word = |value: &toml::Value| value.as_str().or_else(|| value["name"].as_str()).expect("a word").to_string();
    listed.iter().map(word).collect()
}

/// Of this host's target, as it was just built; nothing is fetched for it.
fn packages() -> Vec<Value> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let asked = ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &target];
    let output = Command::new(env!("CARGO")).args(asked).current_dir(root()).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // `metadata` also names what optional features of others would need; `tree` knows what is built.
    let tree = ["tree", "--locked", "--offline", "--target", &target, "--edges", "all", "--prefix", "none"];
    let output = Command::new(env!("CARGO")).args(tree).args(["--format", "{p}"]).current_dir(root()).output();
    let output = output.expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let built: BTreeSet<String> = lines
        .lines()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ").replacen(" v", " ", 1))
        .collect();
    assert!(built.len() > 50, "the crates were found: {built:?}");
    let Value::Array(packages) = metadata["packages"].take() else { panic!("a list of packages") };
    packages.into_iter().filter(|package| built.contains(&name(package))).collect()
}

fn name(package: &Value) -> String {
    format!("{} {}", package["name"].as_str().expect("a name"), package["version"].as_str().expect("a version"))
}

// --- licences -------------------------------------------------------------------------------------------------------

/// Whether the licences that are allowed are enough for what an SPDX expression asks.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&tokens, &mut at, allowed, 0);
    assert_eq!(at, tokens.len(), "{expression} is no SPDX expression");
    met
}

fn either(tokens: &[&str], at: &mut usize, allowed: &[String], depth: usize) -> bool {
    let mut met = all(tokens, at, allowed, depth);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(tokens, at, allowed, depth);
    }
    met
}

fn all(tokens: &[&str], at: &mut usize, allowed: &[String], depth: usize) -> bool {
    let mut met = one(tokens, at, allowed, depth);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(tokens, at, allowed, depth);
    }
    met
}

fn one(tokens: &[&str], at: &mut usize, allowed: &[String], depth: usize) -> bool {
    assert!(depth < DEPTH_MAX, "nested too deeply: {tokens:?}");
    let Some(first) = tokens.get(*at) else { panic!("an expression that ends too early: {tokens:?}") };
    *at += 1;
    if *first == "(" {
        let met = either(tokens, at, allowed, depth + 1);
        assert_eq!(tokens.get(*at), Some(&")"), "{tokens:?}");
        *at += 1;
        return met;
    }
    let mut licence = first.to_string();
    if tokens.get(*at) == Some(&"WITH") {
        licence += &format!(" WITH {}", tokens[*at + 1]);
        *at += 2;
    }
    allowed.contains(&licence)
}

#[test]
fn expressions_of_licences_are_read_as_they_are_meant() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_string);
    for met in ["MIT", "GPL-3.0 OR MIT", "MIT AND ISC", "(MIT OR X) AND ISC", "X/MIT", "Apache-2.0 WITH LLVM-exception"]
    {
        assert!(is_met(met, &allowed), "{met}");
    }
    for not in ["GPL-3.0", "MIT AND X", "(MIT OR ISC) AND X", "Apache-2.0", "X OR (MIT AND Y)", "MIT AND X OR Y"] {
        assert!(!is_met(not, &allowed), "{not}");
    }
}

#[test]
fn every_licence_is_one_that_is_allowed() {
    let allowed = words(&rules(), "licenses", "allow");
    let mut used = BTreeSet::new();
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{} names no licence", name(&package)));
        assert!(is_met(licence, &allowed), "{}: {licence}", name(&package));
        used.extend(allowed.iter().filter(|one| licence.contains(one.as_str())).cloned());
    }
    let unused: Vec<&String> = allowed.iter().filter(|one| !used.contains(*one)).collect();
    assert!(unused.is_empty(), "nothing has this licence any more: {unused:?}");
}

// --- crates ---------------------------------------------------------------------------------------------------------

#[test]
fn no_crate_is_there_that_is_not_wanted_and_none_twice_without_a_reason() {
    let rules = rules();
    let (banned, skipped) = (words(&rules, "bans", "deny"), words(&rules, "bans", "skip"));
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let crate_name = package["name"].as_str().expect("a name").to_string();
        assert!(!banned.contains(&crate_name), "{} is not wanted here", name(&package));
        versions.entry(crate_name).or_default().insert(package["version"].to_string());
    }
    let twice: BTreeSet<&String> = versions.iter().filter(|(_, all)| all.len() > 1).map(|(name, _)| name).collect();
    let more: Vec<_> =
        twice.iter().filter(|name| !skipped.contains(name)).map(|name| (name, &versions[name.as_str()])).collect();
    assert!(more.is_empty(), "two versions of one crate: {more:?}");
    let stale: Vec<_> = skipped.iter().filter(|name| !twice.contains(name)).collect();
    assert!(stale.is_empty(), "deny.toml skips what is there once: {stale:?}");
}

#[test]
fn everything_comes_from_the_registry_with_a_checksum_and_no_version_is_left_open() {
    let sources = rules()["sources"].as_table().expect("a table").clone();
    assert_eq!((sources["unknown-registry"].as_str(), sources["unknown-git"].as_str()), (Some("deny"), Some("deny")));
    let lock: Table = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock").parse().expect("TOML");
    for package in lock["package"].as_array().expect("a list") {
        let crate_name = package["name"].as_str().expect("a name");
        if crate_name == "stdiod" {
            continue;
        }
        assert_eq!(package.get("source").and_then(toml::Value::as_str), Some(REGISTRY), "{crate_name}");
        let sum = package.get("checksum").and_then(toml::Value::as_str).unwrap_or_default();
        assert!(sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()), "{crate_name} has no checksum");
    }
    let manifest: Table =
        std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml").parse().expect("TOML");
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (crate_name, asked) in manifest.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
            let version = asked.as_str().or_else(|| asked.get("version")?.as_str()).unwrap_or("*");
            assert!(!version.contains('*'), "{crate_name} may be of any version");
        }
    }
}

// --- the list of parts ----------------------------------------------------------------------------------------------

/// A file that goes with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_list_of_parts_names_each_crate_with_version_licence_and_checksum() {
    let file = Scratch(std::env::temp_dir().join(format!("stdiod-sbom-{}.json", std::process::id())));
    let list = || {
        let output = Command::new(root().join("scripts/sbom")).arg(&file.0).env("CARGO", env!("CARGO")).output();
        let output = output.expect("scripts/sbom");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(&file.0).expect("a file")
    };
    let text = list();
    assert_eq!(text, list(), "the same sources give the same list");
    let list: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((list["bomFormat"].as_str(), list["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    assert_eq!(list["metadata"]["component"]["name"], "stdiod");
    let components = list["components"].as_array().expect("a list");
    let known: BTreeMap<&str, &Value> =
        components.iter().map(|one| (one["bom-ref"].as_str().expect("a name"), one)).collect();
    assert_eq!(known.len(), components.len(), "each once");
    for (purl, component) in &known {
        assert_eq!(component["purl"], **purl);
        assert!(component["licenses"][0]["expression"].is_string(), "{purl}");
        assert_eq!(component["hashes"][0]["content"].as_str().map(str::len), Some(64), "{purl}");
    }
    // What Cargo.toml names is there, and whom each leans on.
    let manifest: Table =
        std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml").parse().expect("TOML");
    for crate_name in manifest["dependencies"].as_table().expect("a table").keys() {
        assert!(known.keys().any(|purl| purl.starts_with(&format!("pkg:cargo/{crate_name}@"))), "{crate_name}");
    }
    for edge in list["dependencies"].as_array().expect("a list") {
        for to in edge["dependsOn"].as_array().expect("a list") {
            assert!(known.contains_key(to.as_str().expect("a name")), "{to} is in no list");
        }
    }
}
