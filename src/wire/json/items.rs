//! Items of JSON arrays, found in one walk and left as they stand: of any array, and of the lists that servers send, each with
//! the member that names it. Keeps no text of its own; never goes deeper than the walk does.

use super::{Json, Next, NotJson, Walk};

/// The items of an array, in their order. What is wrong with the text comes as the last one, as with `Members`.
pub struct Items<'a> {
    walk: Walk<'a>,
    next: Next,
}

/// Of the array that `text` is.
pub fn items(text: &[u8]) -> Items<'_> {
    Items { walk: Walk { text, at: 0 }, next: Next::Open }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Json<'a>, NotJson>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if !matches!(step, Some(Some(_))) {
            self.next = Next::Nothing;
        }
        step.ok_or(NotJson).transpose()
    }
}

impl<'a> Items<'a> {
    /// Nothing: this is no JSON. Nothing within: the array is over.
    fn step(&mut self) -> Option<Option<Json<'a>>> {
        match std::mem::replace(&mut self.next, Next::Member) {
            Next::Nothing => return Some(None),
            Next::Open => {
                self.walk.eat(b'[')?;
                if self.walk.peek()? == b']' {
                    self.walk.at += 1;
                    return self.walk.end().map(|()| None);
                }
            }
            Next::Member => match self.walk.peek()? {
                b',' => self.walk.at += 1,
                b']' => {
                    self.walk.at += 1;
                    return self.walk.end().map(|()| None);
                }
                _ => return None,
            },
        }
        self.walk.value().map(Some)
    }
}

/// One object of an array, and what one of its members is (the last of that key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub whole: Json<'a>,
    pub named: Option<Json<'a>>,
}

/// There are more items than whoever asked for them wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// The objects in the array that is a member of the object `text`, each with its member `name`: all in one walk, and no more
/// than `most` of them. None, if there is no such array, or this is no JSON. What is no object is left out.
pub fn named_items<'a>(text: &'a [u8], array: &str, name: &str, most: usize) -> Result<Vec<Item<'a>>, TooMany> {
    let found = all_items(text, array, name, most).unwrap_or_default();
    if found.len() > most { Err(TooMany) } else { Ok(found) }
}

/// One more than `most`, if there are more.
fn all_items<'a>(text: &'a [u8], array: &str, name: &str, most: usize) -> Option<Vec<Item<'a>>> {
    let mut walk = Walk { text, at: 0 };
    let mut found = None;
    walk.each_member(|walk, key| {
        if key != array || walk.peek()? != b'[' {
            // The last of that key counts, whatever it is.
            found = found.take().filter(|_| key != array);
            return walk.value().map(|_| ());
        }
        let mut all = Vec::new();
        walk.each_element(|walk| {
            if walk.peek()? != b'{' {
                return walk.value().map(|_| ());
            }
            let (start, mut named) = (walk.at, None);
            walk.each_member(|walk, key| {
                let value = walk.value()?;
                named = if key == name { Some(value) } else { named };
                Some(())
            })?;
            if all.len() <= most {
                all.push(Item { whole: Json(walk.since(start)), named });
            }
            Some(())
        })?;
        found = Some(all);
        Some(())
    })?;
    walk.end()?;
    found
}
