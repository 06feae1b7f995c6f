//! How some of the plain data is written where serde alone would not do: what has no order gets one, and what only JSON can
//! say becomes its text. For the fields that name these functions.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashSet;

/// A set in the order of its members, so that equal sets are written alike.
pub fn sorted<T: Serialize + Ord, H, S: Serializer>(set: &HashSet<T, H>, to: S) -> Result<S::Ok, S::Error> {
    let mut members: Vec<&T> = set.iter().collect();
    members.sort();
    to.collect_seq(members)
}

/// JSON of any shape, as its text.
pub mod json {
    use super::{Deserialize, DeserializeOwned, Deserializer, Error, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&serde_json::to_string(value).map_err(serde::ser::Error::custom)?)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(from)?).map_err(Error::custom)
    }
}
