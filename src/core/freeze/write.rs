//! Values to bytes. Owns the bytes that are being made and the shapes that were met; `Writer::finish` puts them together.

use crate::core::freeze::{Shape, Shapes, Unreadable};
use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use std::collections::BTreeMap;
use std::fmt::Display;

#[derive(Default)]
pub struct Writer {
    out: Vec<u8>,
    shapes: Shapes,
    /// The numbers of shapes without fields, which are met most often.
    plain: BTreeMap<(&'static str, &'static str), u32>,
}

impl Error for Unreadable {
    fn custom<T: Display>(why: T) -> Unreadable {
        Unreadable::Shape(why.to_string())
    }
}

impl Writer {
    pub fn finish(self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.out.len() + 64 * self.shapes.len());
        number(&mut whole, self.shapes.len() as u64);
        for (id, shape) in &self.shapes {
            whole.extend_from_slice(&id.to_le_bytes());
            text(&mut whole, &shape.name);
            text(&mut whole, &shape.variant);
            number(&mut whole, shape.fields.len() as u64);
            shape.fields.iter().for_each(|field| text(&mut whole, field));
        }
        whole.extend_from_slice(&self.out);
        whole
    }

    fn know(&mut self, name: &str, variant: &str, fields: &[&'static str]) -> Result<u32, Unreadable> {
        let words = [name, variant].into_iter().chain(fields.iter().copied());
        let fnv = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let id = words.fold(0x811c_9dc5, |sum, word| fnv(word.bytes().fold(sum, fnv), 0xff));
        let is_it = |shape: &Shape| shape.name == name && shape.variant == variant && shape.fields == fields;
        match self.shapes.get(&id) {
            Some(known) if is_it(known) => {}
            Some(other) => return Err(Unreadable::Shape(format!("{name} and {} have one number", other.name))),
            None => {
                let fields = fields.iter().map(|field| (*field).to_string()).collect();
                self.shapes.insert(id, Shape { name: name.to_string(), variant: variant.to_string(), fields });
            }
        }
        Ok(id)
    }

    fn begin(&mut self, name: &'static str, variant: &'static str) -> Result<(), Unreadable> {
        let id = match self.plain.get(&(name, variant)) {
            Some(id) => *id,
            None => {
                let id = self.know(name, variant, &[])?;
                self.plain.insert((name, variant), id);
                id
            }
        };
        self.out.extend_from_slice(&id.to_le_bytes());
        Ok(())
    }

    fn fields(&mut self, name: &'static str, variant: &'static str) -> Fields<'_> {
        let at = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        Fields { writer: self, at, name, variant, met: Vec::new() }
    }

    fn counted(&mut self, count: Option<usize>) -> Result<Elements<'_>, Unreadable> {
        let count = count.ok_or_else(|| Unreadable::Shape("a list of unknown length".to_string()))?;
        number(&mut self.out, count as u64);
        Ok(Elements { writer: self })
    }
}

fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

// --- what is made of parts ------------------------------------------------------------------------------------------

pub struct Elements<'w> {
    writer: &'w mut Writer,
}

/// A struct: its number is known when all of its fields are.
pub struct Fields<'w> {
    writer: &'w mut Writer,
    at: usize,
    name: &'static str,
    variant: &'static str,
    met: Vec<&'static str>,
}

/// Where each entry begins, where its value does, and where it ends.
pub struct Entries<'w> {
    writer: &'w mut Writer,
    at: usize,
    entries: Vec<(usize, usize, usize)>,
}

impl Fields<'_> {
    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Unreadable> {
        self.met.push(key);
        value.serialize(&mut *self.writer)
    }

    fn close(self) -> Result<(), Unreadable> {
        let id = self.writer.know(self.name, self.variant, &self.met)?;
        self.writer.out[self.at..self.at + 4].copy_from_slice(&id.to_le_bytes());
        Ok(())
    }
}

impl SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = Unreadable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unreadable> {
        let begin = self.writer.out.len();
        key.serialize(&mut *self.writer)?;
        let end = self.writer.out.len();
        self.entries.push((begin, end, end));
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unreadable> {
        value.serialize(&mut *self.writer)?;
        if let Some(entry) = self.entries.last_mut() {
            entry.2 = self.writer.out.len();
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), Unreadable> {
        let out = &mut self.writer.out;
        let before = self.entries.clone();
        self.entries.sort_by(|a, b| out[a.0..a.1].cmp(&out[b.0..b.1]));
        if self.entries != before {
            let sorted: Vec<u8> = self.entries.iter().flat_map(|entry| &out[entry.0..entry.2]).copied().collect();
            out[self.at..].copy_from_slice(&sorted);
        }
        Ok(())
    }
}

macro_rules! elements {
    ($($of:ident $element:ident),*) => {$(
        impl $of for Elements<'_> {
            type Ok = ();
            type Error = Unreadable;

            fn $element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unreadable> {
                value.serialize(&mut *self.writer)
            }

            fn end(self) -> Result<(), Unreadable> {
                Ok(())
            }
        }
    )*};
}

elements!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);

macro_rules! fields {
    ($($of:ident),*) => {$(
        impl $of for Fields<'_> {
            type Ok = ();
            type Error = Unreadable;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Unreadable> {
                self.field(key, value)
            }

            fn end(self) -> Result<(), Unreadable> {
                self.close()
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);

// --- what is one value ----------------------------------------------------------------------------------------------

macro_rules! unsigned {
    ($($name:ident $of:ty),*) => {$(
        fn $name(self, value: $of) -> Result<(), Unreadable> {
            number(&mut self.out, u64::from(value));
            Ok(())
        }
    )*};
}

macro_rules! signed {
    ($($name:ident $of:ty),*) => {$(
        fn $name(self, value: $of) -> Result<(), Unreadable> {
            let value = i64::from(value);
            number(&mut self.out, ((value << 1) ^ (value >> 63)) as u64);
            Ok(())
        }
    )*};
}

impl<'w> Serializer for &'w mut Writer {
    type Ok = ();
    type Error = Unreadable;
    type SerializeSeq = Elements<'w>;
    type SerializeTuple = Elements<'w>;
    type SerializeTupleStruct = Elements<'w>;
    type SerializeTupleVariant = Elements<'w>;
    type SerializeMap = Entries<'w>;
    type SerializeStruct = Fields<'w>;
    type SerializeStructVariant = Fields<'w>;

    unsigned!(serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_char char);
    signed!(serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), Unreadable> {
        self.out.push(u8::from(value));
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Unreadable> {
        self.out.push(value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), Unreadable> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Unreadable> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Unreadable> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), Unreadable> {
        text(&mut self.out, value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Unreadable> {
        number(&mut self.out, value.len() as u64);
        self.out.extend_from_slice(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Unreadable> {
        self.serialize_bool(false)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unreadable> {
        self.out.push(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Unreadable> {
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), Unreadable> {
        Ok(())
    }

    fn serialize_unit_variant(self, name: &'static str, _: u32, variant: &'static str) -> Result<(), Unreadable> {
        self.begin(name, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Unreadable> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Unreadable> {
        self.begin(name, variant)?;
        value.serialize(self)
    }

    fn serialize_seq(self, count: Option<usize>) -> Result<Elements<'w>, Unreadable> {
        self.counted(count)
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements<'w>, Unreadable> {
        Ok(Elements { writer: self })
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Elements<'w>, Unreadable> {
        Ok(Elements { writer: self })
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements<'w>, Unreadable> {
        self.begin(name, variant)?;
        Ok(Elements { writer: self })
    }

    fn serialize_map(self, count: Option<usize>) -> Result<Entries<'w>, Unreadable> {
        let writer = self.counted(count)?.writer;
        Ok(Entries { at: writer.out.len(), writer, entries: Vec::with_capacity(count.unwrap_or(0)) })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'w>, Unreadable> {
        Ok(self.fields(name, ""))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields<'w>, Unreadable> {
        Ok(self.fields(name, variant))
    }
}
