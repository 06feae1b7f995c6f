//! Values that a document does not hold: `${…}` and what it asks a person for. Owns the search for them and the list of
//! those that were not found; never invents one.

use serde::{Deserialize, Serialize};

/// What only the importing side can know.
pub trait Surroundings {
    /// What was given for this import, as with `--set NAME=VALUE`.
    fn given(&self, name: &str) -> Option<String>;
    /// An environment variable of whoever imports.
    fn variable(&self, name: &str) -> Option<String>;
    /// Is the entry of this name to be imported?
    fn wants(&self, from: &str) -> bool;
    /// The text of a file that the document names; else why it cannot be had.
    fn file(&self, path: &str) -> Result<String, String>;
    /// Is there a project that remote servers can belong to?
    fn has_project(&self) -> bool;
}

/// A value that must be given before the server can be registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    pub name: String,
    pub description: Option<String>,
    pub secret: bool,
}

/// The questions of one entry.
pub struct Asking<'a> {
    around: &'a dyn Surroundings,
    server: &'a str,
    needs: Vec<Need>,
}

/// What stands for a placeholder.
pub enum Found {
    Value(String),
    /// Its name is in the list of needs by now.
    Missing,
}

/// A text after its placeholders were looked up.
#[derive(Debug, PartialEq, Eq)]
pub struct Filled {
    pub text: String,
    /// Something of it is still missing.
    pub missing: bool,
}

impl Filled {
    /// A text without a placeholder.
    pub fn plain(text: impl Into<String>) -> Filled {
        Filled { text: text.into(), missing: false }
    }
}

impl<'a> Asking<'a> {
    pub fn new(around: &'a dyn Surroundings, server: &'a str) -> Asking<'a> {
        Asking { around, server, needs: Vec::new() }
    }

    /// `SERVER.NAME` before `NAME`: two servers of a document may want different values for one name.
    pub fn given(&self, name: &str) -> Option<String> {
        self.around.given(&format!("{}.{name}", self.server)).or_else(|| self.around.given(name))
    }

    pub fn variable(&self, name: &str) -> Option<String> {
        self.given(name).or_else(|| self.around.variable(name))
    }

    pub fn file(&self, path: &str) -> Result<String, String> {
        self.around.file(path)
    }

    pub fn has_project(&self) -> bool {
        self.around.has_project()
    }

    /// Asked for once, however often it is used.
    pub fn need(&mut self, name: &str, description: Option<&str>, secret: bool) {
        match self.needs.iter_mut().find(|need| need.name == name) {
            Some(need) => need.secret |= secret,
            None => {
                let description = description.map(str::to_string);
                self.needs.push(Need { name: name.to_string(), description, secret });
            }
        }
    }

    pub fn into_needs(self) -> Vec<Need> {
        self.needs
    }

    /// `text` with every `${…}` replaced by what `look_up` finds for it. What is missing stays as it was written.
    pub fn fill(&mut self, text: &str, mut look_up: impl FnMut(&mut Self, &str) -> Found) -> Filled {
        let mut filled = Filled::plain("");
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((inner, after)) = after.split_once('}') else { break };
            filled.text += before;
            match look_up(self, inner) {
                Found::Value(value) => filled.text += &value,
                Found::Missing => {
                    filled.missing = true;
                    filled.text += &format!("${{{inner}}}");
                }
            }
            rest = after;
        }
        filled.text += rest;
        filled
    }

    /// A variable by its name, with what stands for it if it is not set or (as in a shell) empty.
    pub fn look_up_variable(&mut self, inner: &str) -> Found {
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        match (self.variable(name).filter(|value| default.is_none() || !value.is_empty()), default) {
            (Some(value), _) => Found::Value(value),
            (None, Some(default)) => Found::Value(default.to_string()),
            (None, None) => {
                self.need(name, None, false);
                Found::Missing
            }
        }
    }
}
