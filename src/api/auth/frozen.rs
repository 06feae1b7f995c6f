//! The table of tokens as plain data. It is kept as the tokens with those of their hashes that open anything: the rest follows
//! from them, and whoever is in the table twice is one and the same again when it is read.

use crate::api::auth::resource::Resource;
use crate::api::auth::{Tokens, Used};
use crate::model::records::Token;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
struct Plain {
    tokens: Vec<(Token, Vec<[u8; 32]>)>,
    used: BTreeMap<String, Used>,
    edition: u64,
    unread: bool,
    resource: Option<Arc<Resource>>,
}

impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let tokens = self.by_name.values().map(|known| {
            let hashes = std::iter::once(known.token.hash).chain(known.token.previous.map(|(previous, _)| previous));
            let live = |hash: &[u8; 32]| self.by_hash.get(hash).is_some_and(|other| Arc::ptr_eq(other, known));
            (known.token.clone(), hashes.filter(live).collect())
        });
        let plain = Plain {
            tokens: tokens.collect(),
            used: self.used.iter().map(|(name, used)| (name.to_string(), *used)).collect(),
            edition: self.edition,
            unread: self.unread,
            resource: self.resource.clone(),
        };
        plain.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Tokens, D::Error> {
        let plain = Plain::deserialize(from)?;
        let mut tokens = Tokens::default();
        for (token, hashes) in plain.tokens {
            let name: Arc<str> = token.name.as_str().into();
            if let Some(used) = plain.used.get(&*name) {
                tokens.used.insert(Arc::clone(&name), *used);
            }
            tokens.know(token, name, &hashes);
        }
        (tokens.edition, tokens.unread, tokens.resource) = (plain.edition, plain.unread, plain.resource);
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::auth::Tokens;
    use crate::core::freeze::{freeze, thaw};
    use crate::model::records::Token;

    #[test]
    fn tokens_open_what_they_opened_and_what_had_ended_stays_at_its_end() {
        let token = |name: &str, hash: u8| Token {
            name: name.to_string(),
            hash: [hash; 32],
            scopes: vec!["mcp:call".to_string()],
            ..Token::default()
        };
        let mut tokens = Tokens::unread();
        tokens.insert(Token { expires_unix_ms: Some(5), ..token("over", 1) });
        tokens.insert(token("good", 2));
        tokens.rotate(Token { previous: Some(([2; 32], 99)), ..token("good", 3) });
        tokens.expire(7);
        let bytes = freeze(&tokens).unwrap();
        let again: Tokens = thaw(&bytes).unwrap();
        assert_eq!(freeze(&again).unwrap(), bytes);
        let opens = |tokens: &Tokens, hash: u8| tokens.by_hash.get(&[hash; 32]).map(|known| known.principal.clone());
        for hash in 1..=3 {
            assert_eq!(opens(&again, hash), opens(&tokens, hash), "{hash}");
        }
        assert!(opens(&again, 1).is_none());
        let (old, new) = (opens(&again, 2).unwrap(), opens(&again, 3).unwrap());
        assert!(again.still_knows(&old) && again.still_knows(&new), "both secrets are the same one's");
        assert_eq!((again.edition(), again.unread), (tokens.edition(), true));
    }
}
