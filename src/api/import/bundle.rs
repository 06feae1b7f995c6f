//! An `.mcpb` bundle: a zip archive with a manifest and the server's own files, which become `files` of the definition. Such
//! files are few, small and text; a bundle with others is refused by the name of the first. The archive may be anybody's:
//! every size is bounded by what comes out of it, not by what it says, and no path leads out of the bundle's directory.

use super::Draft;
use super::clients::scalar;
use super::program::{Variables, program, value_of};
use super::values::{Asking, Filled, Found};
use crate::limits::{BUNDLE_ENTRIES_MAX, FILES_BYTES_MAX, FILES_MAX, PATH_MAX};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use zip::ZipArchive;
use zip::read::ZipFile;

/// Where the bundle's directory is, in the container.
const HOME: &str = "/app";
const MANIFEST: &str = "manifest.json";
/// What is shown to people and not run.
const PICTURES: &[&str] = &["png", "jpg", "jpeg", "gif", "webp", "ico", "svg", "icns"];

pub struct Bundle {
    manifest: Map<String, Value>,
    /// By their path in the bundle.
    files: BTreeMap<String, String>,
}

/// The words of a command, and its variables, with their placeholders.
struct Configured {
    words: Vec<String>,
    environment: BTreeMap<String, String>,
}

pub fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06")
}

pub fn open(bytes: &[u8]) -> Result<Bundle, String> {
    let broken = |why: zip::result::ZipError| format!("the bundle is no valid zip archive: {why}");
    let listed = entries_listed(bytes).ok_or("the bundle is no valid zip archive: it has no end")?;
    if listed > BUNDLE_ENTRIES_MAX {
        return Err(format!(
            "the bundle has more than {BUNDLE_ENTRIES_MAX} files, and at most {FILES_MAX} can be taken"
        ));
    }
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    if archive.len() > BUNDLE_ENTRIES_MAX {
        return Err("the bundle has more files than it says".to_string());
    }
    let mut files = BTreeMap::new();
    let mut manifest = None;
    let mut room = FILES_BYTES_MAX;
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).map_err(broken)?;
        let path = path_of(&file)?;
        if file.is_dir() || is_picture(&path) {
            continue;
        }
        let text = text_of(&mut file, &path, room)?;
        room -= text.len();
        if path == MANIFEST {
            manifest = Some(text.clone());
        }
        if files.insert(path.clone(), text).is_some() {
            return Err(format!("the bundle has {path} twice"));
        }
        if files.len() > FILES_MAX {
            return Err(format!(
                "the bundle has more than {FILES_MAX} files, which is all that a definition can carry: make an image of it"
            ));
        }
    }
    let manifest = manifest.ok_or("the bundle has no manifest.json")?;
    match serde_json::from_str(manifest.trim_start_matches('\u{feff}')) {
        Ok(Value::Object(manifest)) if manifest.get("name").is_some_and(Value::is_string) => {
            Ok(Bundle { manifest, files })
        }
        Ok(_) => Err("the bundle's manifest.json has no name".to_string()),
        Err(why) => Err(format!("the bundle's manifest.json is not valid JSON: {why}")),
    }
}

/// How many files the archive's own end says there are: read before anything is kept for each of them.
fn entries_listed(bytes: &[u8]) -> Option<usize> {
    const END: usize = 22;
    let tail = bytes.len().saturating_sub(END + usize::from(u16::MAX));
    let end = tail + memchr::memmem::rfind(&bytes[tail..], b"PK\x05\x06")?;
    let count = bytes.get(end + 10..end + 12)?;
    Some(usize::from(u16::from_le_bytes([count[0], count[1]])))
}

fn path_of<R: Read>(file: &ZipFile<R>) -> Result<String, String> {
    let name = file.name().map_err(|_| "the bundle has a file whose name is no text".to_string())?;
    let shown: String = name.chars().take(200).collect();
    let path = name.trim_end_matches('/');
    let sane = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.chars().any(char::is_control);
    if path.len() > PATH_MAX || path.contains(['\\', ':']) || !path.split('/').all(sane) {
        return Err(format!("the bundle has a file at {shown:?}, which is no path inside of it"));
    }
    if file.is_symlink() {
        return Err(format!("{shown} of the bundle is a symbolic link"));
    }
    if file.encrypted() {
        return Err(format!("{shown} of the bundle is encrypted"));
    }
    Ok(path.to_string())
}

fn is_picture(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| PICTURES.contains(&extension.to_ascii_lowercase().as_str()))
}

fn text_of<R: Read>(file: &mut ZipFile<R>, path: &str, room: usize) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(room as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|why| format!("{path} of the bundle cannot be unpacked: {why}"))?;
    if bytes.len() > room {
        return Err(format!(
            "{path} of the bundle does not fit: a definition carries {FILES_BYTES_MAX} bytes of files at most; make an image \
             of the bundle"
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) | Err(_) => Err(format!(
            "{path} of the bundle is no text, which a definition cannot carry: make an image of the bundle"
        )),
    }
}

impl Bundle {
    pub fn name(&self) -> &str {
        self.manifest["name"].as_str().unwrap_or_default()
    }

    pub fn draft(&self, asking: &mut Asking) -> Result<Draft, String> {
        self.check_platform()?;
        let server =
            self.manifest.get("server").and_then(Value::as_object).ok_or("server: is required in a manifest")?;
        let kind = server.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "binary" {
            return Err("server.type: a binary is no text, which a definition cannot carry: make an image of it".into());
        }
        let Configured { words, environment } = self.configured(server, kind)?;
        let words = words.iter().flat_map(|word| self.arguments(word, asking)).collect();
        let mut variables = Variables::new();
        for (name, text) in environment {
            // An answer that may be missing, and is, leaves the variable out.
            if !self.is_left_out(&text, asking) {
                let value = value_of(self.fill(&text, asking));
                variables.insert(name, value);
            }
        }
        if kind == "uv" {
            // The bundle's own directory is read-only.
            variables.entry("UV_PROJECT_ENVIRONMENT".into()).or_insert(Some("/cache/venv".into()));
        }
        let mut definition = Map::new();
        program(words, variables, &mut definition, asking)?;
        let files = self.files.iter().map(|(path, text)| (format!("{HOME}/{path}"), json!(text)));
        definition.insert("files".to_string(), Value::Object(files.collect()));
        Ok(Draft { definition, ..Draft::default() })
    }

    fn check_platform(&self) -> Result<(), String> {
        let platforms =
            self.manifest.get("compatibility").and_then(|compatibility| compatibility["platforms"].as_array());
        match platforms {
            Some(platforms) if !platforms.iter().any(|platform| platform == "linux") => {
                let named: Vec<&str> = platforms.iter().filter_map(Value::as_str).collect();
                Err(format!("compatibility.platforms: it is for {}, not for linux", named.join(" and ")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What is run, as the manifest says it for Linux, or as its type and entry point imply.
    fn configured(&self, server: &Map<String, Value>, kind: &str) -> Result<Configured, String> {
        let config = server.get("mcp_config").unwrap_or(&Value::Null);
        let on_linux = &config["platform_overrides"]["linux"];
        let of = |key: &str| if on_linux[key].is_null() { &config[key] } else { &on_linux[key] };
        let mut words = Vec::new();
        match (of("command").as_str(), server.get("entry_point").and_then(Value::as_str)) {
            (Some(command), _) => {
                words.push(if kind == "python" && command == "python" { "python3" } else { command }.to_string());
                let args = of("args").as_array().map_or(&[][..], Vec::as_slice);
                words.extend(args.iter().filter_map(scalar));
            }
            (None, Some(entry)) => match kind {
                "node" => words.extend(["node".to_string(), format!("{HOME}/{entry}")]),
                "python" => words.extend(["python3".to_string(), format!("{HOME}/{entry}")]),
                "uv" => words.extend(["uv", "run", "--directory", HOME, entry].map(str::to_string)),
                other => return Err(format!("server.type: {other:?} is not known")),
            },
            (None, None) => return Err("server: has neither mcp_config.command nor entry_point".to_string()),
        }
        let mut environment = BTreeMap::new();
        for source in [&config["env"], &on_linux["env"]] {
            let pairs = source.as_object().into_iter().flatten();
            environment.extend(pairs.filter_map(|(name, value)| Some((name.clone(), scalar(value)?))));
        }
        Ok(Configured { words, environment })
    }

    /// One word, or several for an answer that is a list, or none for one that may be missing.
    fn arguments(&self, word: &str, asking: &mut Asking) -> Vec<String> {
        if let Some(key) = word.strip_prefix("${user_config.").and_then(|rest| rest.strip_suffix('}')) {
            if self.is_left_out(word, asking) {
                return Vec::new();
            }
            if self.setting(key)["multiple"] == true
                && let Some(values) = self.answer(key, asking)
            {
                return values;
            }
        }
        vec![self.fill(word, asking).text]
    }

    fn setting(&self, key: &str) -> &Value {
        self.manifest.get("user_config").map_or(&Value::Null, |settings| &settings[key])
    }

    /// What was given, or the default; several where the setting is a list.
    fn answer(&self, key: &str, asking: &mut Asking) -> Option<Vec<String>> {
        let setting = self.setting(key);
        let is_list = setting["multiple"] == true;
        if let Some(given) = asking.given(key) {
            return Some(if is_list { given.split(',').map(str::to_string).collect() } else { vec![given] });
        }
        let defaults: Vec<String> = match &setting["default"] {
            Value::Array(values) => values.iter().filter_map(scalar).collect(),
            value => scalar(value).into_iter().collect(),
        };
        if defaults.is_empty() {
            return None;
        }
        let filled: Vec<Filled> = defaults.iter().map(|text| self.fill_places(text, asking)).collect();
        (!filled.iter().any(|one| one.missing)).then(|| filled.into_iter().map(|one| one.text).collect())
    }

    /// Is all of it the answer to a question that nobody must answer, and nobody has?
    fn is_left_out(&self, text: &str, asking: &mut Asking) -> bool {
        let Some(key) = text.strip_prefix("${user_config.").and_then(|rest| rest.strip_suffix('}')) else {
            return false;
        };
        let setting = self.setting(key);
        setting.is_object()
            && setting["required"] != true
            && setting["default"].is_null()
            && asking.given(key).is_none()
    }

    fn fill(&self, text: &str, asking: &mut Asking) -> Filled {
        asking.fill(text, |asking, inner| match inner.strip_prefix("user_config.") {
            Some(key) => self.look_up_setting(key, asking),
            None => look_up_place(inner, asking),
        })
    }

    /// As above, for a text that holds no settings itself.
    fn fill_places(&self, text: &str, asking: &mut Asking) -> Filled {
        asking.fill(text, |asking, inner| look_up_place(inner, asking))
    }

    fn look_up_setting(&self, key: &str, asking: &mut Asking) -> Found {
        if let Some(values) = self.answer(key, asking) {
            return Found::Value(values.join(","));
        }
        let setting = self.setting(key);
        if setting.is_object() && setting["required"] != true && setting["default"].is_null() {
            return Found::Value(String::new());
        }
        let description = setting["description"].as_str().or(setting["title"].as_str());
        asking.need(key, description, setting["sensitive"] == true);
        Found::Missing
    }
}

fn look_up_place(inner: &str, asking: &mut Asking) -> Found {
    match inner {
        "__dirname" => Found::Value(HOME.to_string()),
        "pathSeparator" | "/" => Found::Value("/".to_string()),
        _ => asking.look_up_variable(inner),
    }
}
