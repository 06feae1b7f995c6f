//! The rules of the house that a compiler does not keep: the pure part stays pure, nothing is left half done, every module
//! says what it is, files stay readable, scripts name no server of their own choice, and what is promised has a test. Reads
//! text, runs nothing.

use std::path::{Path, PathBuf};

/// Lines of a file before its tests.
const LINES_MAX: usize = 600;
const README_WIDTH_MAX: usize = 160;

/// What `model`, `wire`, `api` and `core` must not know of.
const IMPURE: &[&str] = &[
    "mio::",
    "nix::",
    "libc::",
    "postgres::",
    "signal_hook",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::os",
    "std::env",
    "Instant::now",
    "SystemTime::now",
    "Uuid::new_v4",
];

/// Put together here, so that this file does not find itself.
fn unfinished() -> [String; 5] {
    let bang = |name: &str| format!("{name}!(");
    [bang("todo"), bang("unimplemented"), ["#[", "ignore"].concat(), ["for", " now"].concat(), ["FIX", "ME"].concat()]
}

/// Parts of names of package registries and mirrors. Which one is used is the machine's own business.
const SERVERS: &[&str] = &[
    "deb.debian.",
    "ftp.debian.",
    "archive.ubuntu.",
    "crates.io",
    "npmjs.",
    "pypi.",
    "pythonhosted.",
    "nodesource.",
    "docker.io",
    "ghcr.io",
    "quay.io",
    "storage.googleapis.",
    "rustup.rs",
    "apt.postgresql.",
];

#[test]
fn the_pure_part_touches_neither_kernel_nor_clock() {
    let mut found = Vec::new();
    for file in files(&["src/model", "src/wire", "src/api", "src/core"], "rs") {
        for (number, line) in code_of(&file) {
            // `use std::{fs, net}` hides the same thing.
            let grouped = line.trim_start().starts_with("use std::{")
                && ["fs", "net", "process", "thread", "os", "env"]
                    .iter()
                    .any(|name| names(&line).any(|word| word == *name));
            let root = line.trim_start().strip_prefix("use ").map(|rest| rest.trim_end_matches(';'));
            let whole = root.is_some_and(|root| ["mio", "nix", "libc", "postgres"].contains(&root));
            if grouped || whole || IMPURE.iter().any(|impure| line.contains(impure)) {
                found.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    nothing(&found);
}

/// Each layer and those it may name; what stands in no row may be named by all.
const LAYERS: &[(&str, &[&str])] = &[
    ("model", &["model"]),
    ("wire", &["model", "wire"]),
    ("api", &["model", "wire", "api"]),
    ("core", &["model", "wire", "api", "core"]),
    ("store", &["model", "wire", "api", "store", "sealing"]),
    ("sandbox", &["model", "wire", "api", "sandbox", "config"]),
];
const BASE: &[&str] = &["ids", "limits", "shares", "allowance"];

#[test]
fn no_layer_names_one_above_it() {
    let mut found = Vec::new();
    for (layer, below) in LAYERS {
        for file in files(&[&format!("src/{layer}")], "rs") {
            for (number, line) in code_of(&file) {
                let named = line.split("crate::").skip(1).filter_map(|rest| names(rest).next());
                let upwards = named.filter(|name| !below.contains(name) && !BASE.contains(name) && !name.is_empty());
                found.extend(upwards.map(|name| format!("{}:{number}: {name}", file.display())));
            }
        }
    }
    nothing(&found);
}

/// The files of the core that route: what happens in one room is passed on to the others there, and nowhere else.
const ROUTING: &[&str] = &[
    "src/core/mod.rs",
    "src/core/route.rs",
    "src/core/route/aggregate.rs",
    "src/core/route/calls.rs",
    "src/core/route/further.rs",
    "src/core/route/handshakes.rs",
    "src/core/route/imports.rs",
    "src/core/route/mcp.rs",
    "src/core/route/posts.rs",
    "src/core/route/projects.rs",
    "src/core/route/rest.rs",
    "src/core/route/stateless.rs",
];
/// Those that still reach for everything. This list only ever becomes shorter.
const STILL_EVERYTHING: &[&str] = &[
    "src/core/clients/asks.rs",
    "src/core/mcp/admission.rs",
    "src/core/projects/rows.rs",
    "src/core/projects/tools.rs",
    "src/core/projects/waits.rs",
    "src/core/servers/changes.rs",
];

#[test]
fn the_core_routes_in_one_place_and_everything_else_is_done_in_rooms() {
    let has = |file: &PathBuf| code_of(file).iter().any(|(_, line)| line.starts_with("impl Core "));
    let shown = |file: &PathBuf| file.strip_prefix(root()).expect("ours").display().to_string();
    let have: Vec<String> = files(&["src"], "rs").iter().filter(|file| has(file)).map(shown).collect();
    let listed = || ROUTING.iter().chain(STILL_EVERYTHING).map(ToString::to_string);
    let mut found: Vec<String> = have.iter().filter(|file| !listed().any(|known| known == **file)).cloned().collect();
    let stale = listed().filter(|file| !have.contains(file));
    found.extend(stale.map(|file| format!("{file} has no `impl Core` any more")));
    nothing(&found);
}

/// The rooms of the core, and the type that holds what each of them knows.
const ROOMS: &[(&str, &str)] = &[
    ("servers", "Servers"),
    ("hosting", "Hosting"),
    ("peers", "Peers"),
    ("mcp", "Mcp"),
    ("clients", "Clients"),
    ("projects", "Projects"),
];
/// Those whose fields others still name. This list only ever becomes shorter.
const STILL_OPEN: &[&str] = &["servers", "peers"];

#[test]
fn no_room_of_the_core_reaches_into_another() {
    let mut found = Vec::new();
    for (room, name) in ROOMS {
        for file in files(&["src/core"], "rs") {
            let inside = file.starts_with(root().join("src/core").join(room));
            for (number, line) in code_of(&file) {
                if !inside && line.starts_with(&format!("impl {name} ")) {
                    found.push(format!("{}:{number}: {name} is at home in {room}", file.display()));
                }
            }
        }
        let home = root().join("src/core").join(room).join("mod.rs");
        let code = code_of(&home);
        let fields = code.iter().skip_while(|(_, line)| !line.contains(&format!("struct {name} {{")));
        let fields = fields.skip(1).take_while(|(_, line)| !line.starts_with('}'));
        let open: Vec<String> = fields
            .filter(|(_, line)| line.trim_start().starts_with("pub"))
            .map(|(number, line)| format!("{}:{number}: {}", home.display(), line.trim()))
            .collect();
        match (STILL_OPEN.contains(room), open.is_empty()) {
            (true, true) => found.push(format!("{room} has no open field any more")),
            (true, false) | (false, true) => {}
            (false, false) => found.extend(open),
        }
    }
    nothing(&found);
}

#[test]
fn nothing_is_left_half_done() {
    let unfinished = unfinished();
    let mut found = Vec::new();
    for file in
        [files(&["src", "tests", "benches"], "rs"), files(&["scripts"], ""), files(&["migrations"], "sql")].concat()
    {
        for (number, line) in read(&file).lines().enumerate() {
            if unfinished.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    nothing(&found);
}

#[test]
fn every_module_says_what_it_is() {
    let mut found = Vec::new();
    for file in files(&["src", "tests", "benches"], "rs") {
        let text = read(&file);
        // A file that only names its parts has nothing to say.
        let is_map =
            text.lines().all(|line| line.is_empty() || line.starts_with("pub mod ") || line.starts_with("mod "));
        if !text.starts_with("//!") && !is_map {
            found.push(format!("{}: no head", file.display()));
        }
    }
    nothing(&found);
}

#[test]
fn files_stay_short_enough_to_read() {
    let mut found = Vec::new();
    for file in files(&["src", "tests", "benches"], "rs") {
        let text = read(&file);
        let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
        // The table of all bounds is one thing, however many there are.
        if lines > LINES_MAX && !file.ends_with("src/limits.rs") {
            found.push(format!("{}: {lines} lines: is there a second thing in it?", file.display()));
        }
    }
    if let Some(number) =
        read(&root().join("README.md")).lines().position(|line| line.chars().count() > README_WIDTH_MAX)
    {
        found.push(format!("README.md:{}: a very long line", number + 1));
    }
    nothing(&found);
}

/// A page that leads through the files is worth nothing if they are elsewhere.
#[test]
fn the_page_on_architecture_names_files_that_are_there() {
    let page = read(&root().join("docs/architecture.md"));
    let named = page.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs") || word.ends_with('/'));
    let is_there = |name: &str| ["src", ""].iter().any(|base| root().join(base).join(name).exists());
    let found: Vec<String> = named.filter(|name| name.contains('/') && !is_there(name)).map(str::to_owned).collect();
    nothing(&found);
}

#[test]
fn scripts_name_no_registry_and_no_mirror() {
    let mut found = Vec::new();
    for file in [files(&["scripts", ".ci"], ""), vec![root().join("README.md")]].concat() {
        for (number, line) in read(&file).lines().enumerate() {
            if SERVERS.iter().any(|server| line.contains(server)) {
                found.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    nothing(&found);
}

#[test]
fn scripts_can_be_run_and_have_no_syntax_errors() {
    use std::os::unix::fs::PermissionsExt;
    let mut found = Vec::new();
    for file in files(&["scripts", ".ci"], "") {
        let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
        let sourced = file.extension().is_some_and(|extension| extension == "sh");
        if (mode & 0o111 == 0) != sourced {
            found.push(format!("{}: mode {mode:o}", file.display()));
        }
        let mut checker = match read(&file).lines().next() {
            // Parsed, and not compiled: that would leave a file beside it.
            Some(first) if first.ends_with("python3") => {
                let mut python = std::process::Command::new("python3");
                python.args(["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"]);
                python
            }
            Some(_) | None => {
                let mut bash = std::process::Command::new("bash");
                bash.arg("-n");
                bash
            }
        };
        let checked = checker.arg(&file).output().expect("bash or python3");
        if !checked.status.success() {
            found.push(String::from_utf8_lossy(&checked.stderr).into_owned());
        }
    }
    nothing(&found);
}

#[test]
fn the_guides_servers_are_as_printed() {
    // Must-show of the first issue: byte for byte. Whoever "improves" them breaks what the test proves.
    assert_eq!(fnv("tests/fixtures/node-guide.js"), 0xc244_2464_c178_762d, "changed");
    assert_eq!(fnv("tests/fixtures/python-guide.py"), 0x5463_ddb4_0c42_2cb6, "changed");
}

/// A row: what is promised, and `file` `test` for it.
#[test]
fn every_promise_names_a_test_that_is_there() {
    let text = read(Path::new("docs/security.md"));
    let (_, table) = text.split_once("## Which test shows it").expect("the table of promises");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 10, "the rows were found: {rows:?}");
    let mut found = Vec::new();
    for row in rows {
        let shown_by = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let words: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        let is_there = |pair: &[&str]| {
            pair.len() == 2
                && root().join(pair[0]).is_file()
                && read(Path::new(pair[0])).contains(&format!("fn {}(", pair[1]))
        };
        if words.is_empty() || !words.chunks(2).all(is_there) {
            found.push(row.to_string());
        }
    }
    nothing(&found);
}

/// The page that says where unsafe code is says it of every file.
#[test]
fn every_file_with_unsafe_code_is_in_the_inventory() {
    let text = read(Path::new("docs/security.md"));
    let (_, table) = text.split_once("## Unsafe code").expect("the inventory");
    let table = table.split("\n## ").next().unwrap_or_default();
    let mark = ["unsafe", " "].concat();
    let is_unsafe = |file: &PathBuf| {
        code_of(file)
            .iter()
            .any(|(_, line)| ["{", "fn", "impl"].iter().any(|what| line.contains(&format!("{mark}{what}"))))
    };
    let shown = |file: &PathBuf| file.strip_prefix(root()).expect("ours").display().to_string();
    let has: Vec<String> = files(&["src"], "rs").iter().filter(|file| is_unsafe(file)).map(shown).collect();
    let listed: Vec<String> = table.split('`').filter(|word| word.ends_with(".rs")).map(str::to_owned).collect();
    let mut found: Vec<String> = has.iter().filter(|file| !listed.contains(file)).cloned().collect();
    let stale = listed.iter().filter(|file| file.starts_with("src/") && !has.contains(file));
    found.extend(stale.map(|file| format!("{file} has none")));
    nothing(&found);
}

// --- reading --------------------------------------------------------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Files below some directories, by extension (none: all).
fn files(directories: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = directories.iter().map(|directory| root().join(directory)).collect();
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if extension.is_empty() || path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The lines of a file that are neither comment nor test, with their numbers.
fn code_of(file: &Path) -> Vec<(usize, String)> {
    let text = read(file);
    let lines = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.map(|(number, line)| (number + 1, line.to_string())).collect()
}

fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn fnv(file: &str) -> u64 {
    let bytes = std::fs::read(root().join(file)).expect("a fixture");
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[track_caller]
fn nothing(found: &[String]) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}
