//! Named deadlines in a min-heap. Setting a key again moves it, cancelling is lazy: the heap keeps stale entries until
//! they come up or outnumber the live ones. Invariant: at most one live deadline per key.

use crate::ids::IdMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;

pub struct Deadlines<K> {
    heap: BinaryHeap<Reverse<(u64, K)>>,
    live: IdMap<K, u64>,
}

impl<K: Copy + Eq + Hash + Ord> Default for Deadlines<K> {
    fn default() -> Deadlines<K> {
        Deadlines { heap: BinaryHeap::new(), live: IdMap::default() }
    }
}

/// Only what is live: the rest of the heap says nothing.
impl<K: Serialize> Serialize for Deadlines<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.live.serialize(to)
    }
}

impl<'de, K: Copy + Eq + Hash + Ord + Deserialize<'de>> Deserialize<'de> for Deadlines<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Deadlines<K>, D::Error> {
        let live = IdMap::<K, u64>::deserialize(from)?;
        let heap = live.iter().map(|(key, at)| Reverse((*at, *key))).collect();
        Ok(Deadlines { heap, live })
    }
}

impl<K: Copy + Eq + Hash + Ord> Deadlines<K> {
    pub fn set(&mut self, key: K, at_ms: u64) {
        if self.live.insert(key, at_ms) != Some(at_ms) {
            self.heap.push(Reverse((at_ms, key)));
        }
        if self.heap.len() > 2 * self.live.len() + 64 {
            self.heap = self.live.iter().map(|(key, at)| Reverse((*at, *key))).collect();
        }
    }

    pub fn cancel(&mut self, key: K) {
        self.live.remove(&key);
    }

    pub fn at(&self, key: K) -> Option<u64> {
        self.live.get(&key).copied()
    }

    /// When the earliest live deadline is due.
    pub fn earliest(&mut self) -> Option<u64> {
        while let Some(Reverse((at, key))) = self.heap.peek() {
            if self.live.get(key) == Some(at) {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes one deadline that has passed.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<K> {
        // No live one is earlier than the first that is there, so mostly nothing has to be looked up.
        let Reverse((first, _)) = self.heap.peek()?;
        if *first > now_ms || self.earliest()? > now_ms {
            return None;
        }
        let Reverse((_, key)) = self.heap.pop().expect("earliest() saw it");
        self.live.remove(&key);
        Some(key)
    }

    /// In no order.
    #[cfg(debug_assertions)]
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.live.keys()
    }

    pub fn len(&self) -> usize {
        self.live.len()
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_fires_once_at_its_new_time() {
        let mut d = Deadlines::default();
        d.set('a', 10);
        d.set('b', 20);
        d.set('a', 30);
        assert_eq!(d.pop_due(15), None);
        assert_eq!(d.pop_due(25), Some('b'));
        assert_eq!(d.pop_due(25), None);
        assert_eq!(d.pop_due(30), Some('a'));
        assert_eq!((d.pop_due(99), d.earliest()), (None, None));
    }

    #[test]
    fn a_cancelled_deadline_never_fires_and_its_memory_comes_back() {
        let mut d = Deadlines::default();
        for key in 0..100_000u32 {
            d.set(key, 30_000);
            d.cancel(key);
        }
        assert!(d.heap.len() < 200);
        assert_eq!(d.pop_due(u64::MAX), None);
    }
}
