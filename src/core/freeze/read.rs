//! Bytes to values. Owns a place in the bytes and the shapes that came with them. Every length is checked against what is
//! left; a value that the types of this build do not know is an error, and nothing panics whatever the bytes are.

use crate::core::freeze::Unreadable;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Range;

pub struct Reader<'b> {
    rest: &'b [u8],
    shapes: BTreeMap<u32, Shape<'b>>,
    /// The fields of all shapes.
    fields: Vec<&'b str>,
}

#[derive(Clone)]
struct Shape<'b> {
    name: &'b str,
    variant: &'b str,
    fields: Range<usize>,
}

impl Error for Unreadable {
    fn custom<T: Display>(why: T) -> Unreadable {
        Unreadable::Shape(why.to_string())
    }
}

impl<'b> Reader<'b> {
    pub fn open(bytes: &'b [u8]) -> Result<Reader<'b>, Unreadable> {
        let mut reader = Reader { rest: bytes, shapes: BTreeMap::new(), fields: Vec::new() };
        for _ in 0..reader.count()? {
            let id = u32::from_le_bytes(reader.array()?);
            let (name, variant) = (reader.text()?, reader.text()?);
            let begin = reader.fields.len();
            for _ in 0..reader.count()? {
                let field = reader.text()?;
                reader.fields.push(field);
            }
            let fields = begin..reader.fields.len();
            reader.shapes.insert(id, Shape { name, variant, fields });
        }
        Ok(reader)
    }

    pub fn shapes(&self) -> BTreeSet<u32> {
        self.shapes.keys().copied().collect()
    }

    pub fn close(self) -> Result<(), Unreadable> {
        if self.rest.is_empty() { Ok(()) } else { Err(Unreadable::Damaged) }
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Unreadable::Damaged)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.take(N)?.try_into().map_err(|_| Unreadable::Damaged)
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Unreadable::Damaged);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Unreadable::Damaged)
    }

    /// Of parts that have a byte each at least.
    fn count(&mut self) -> Result<usize, Unreadable> {
        let count = usize::try_from(self.number()?).map_err(|_| Unreadable::Damaged)?;
        if count <= self.rest.len() { Ok(count) } else { Err(Unreadable::Damaged) }
    }

    fn bytes(&mut self) -> Result<&'b [u8], Unreadable> {
        let count = self.count()?;
        self.take(count)
    }

    fn text(&mut self) -> Result<&'b str, Unreadable> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable::Damaged)
    }

    fn signed(&mut self) -> Result<i64, Unreadable> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn flag(&mut self) -> Result<bool, Unreadable> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Unreadable::Damaged),
        }
    }

    /// The next value is a struct or a variant of this name.
    fn shape(&mut self, name: &str) -> Result<Shape<'b>, Unreadable> {
        let id = u32::from_le_bytes(self.array()?);
        let shape = self.shapes.get(&id).ok_or(Unreadable::Damaged)?;
        if shape.name != name {
            return Err(Unreadable::Shape(format!("a {} where a {name} is expected", shape.name)));
        }
        Ok(shape.clone())
    }
}

// --- what is made of parts ------------------------------------------------------------------------------------------

struct Elements<'r, 'b> {
    reader: &'r mut Reader<'b>,
    left: usize,
}

impl<'b> SeqAccess<'b> for Elements<'_, 'b> {
    type Error = Unreadable;

    fn next_element_seed<T: DeserializeSeed<'b>>(&mut self, seed: T) -> Result<Option<T::Value>, Unreadable> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'b> MapAccess<'b> for Elements<'_, 'b> {
    type Error = Unreadable;

    fn next_key_seed<K: DeserializeSeed<'b>>(&mut self, seed: K) -> Result<Option<K::Value>, Unreadable> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'b>>(&mut self, seed: V) -> Result<V::Value, Unreadable> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

struct Fields<'r, 'b> {
    reader: &'r mut Reader<'b>,
    shape: Shape<'b>,
}

impl<'b> MapAccess<'b> for Fields<'_, 'b> {
    type Error = Unreadable;

    fn next_key_seed<K: DeserializeSeed<'b>>(&mut self, seed: K) -> Result<Option<K::Value>, Unreadable> {
        let Some(at) = self.shape.fields.next() else { return Ok(None) };
        seed.deserialize(BorrowedStrDeserializer::new(self.reader.fields[at])).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'b>>(&mut self, seed: V) -> Result<V::Value, Unreadable> {
        seed.deserialize(&mut *self.reader)
    }
}

impl<'b> EnumAccess<'b> for Fields<'_, 'b> {
    type Error = Unreadable;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'b>>(self, seed: V) -> Result<(V::Value, Self), Unreadable> {
        let variant = seed.deserialize(BorrowedStrDeserializer::<Unreadable>::new(self.shape.variant))?;
        Ok((variant, self))
    }
}

impl<'b> VariantAccess<'b> for Fields<'_, 'b> {
    type Error = Unreadable;

    fn unit_variant(self) -> Result<(), Unreadable> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'b>>(self, seed: T) -> Result<T::Value, Unreadable> {
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: Visitor<'b>>(self, count: usize, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_seq(Elements { reader: self.reader, left: count })
    }

    fn struct_variant<V: Visitor<'b>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_map(self)
    }
}

// --- what is one value ----------------------------------------------------------------------------------------------

macro_rules! numbers {
    ($($name:ident $visit:ident $of:ty, $how:ident);*) => {$(
        fn $name<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
            let number = self.$how()?;
            visitor.$visit(<$of>::try_from(number).map_err(|_| Unreadable::Damaged)?)
        }
    )*};
}

/// A value says by itself what it is nowhere: whoever reads must know.
macro_rules! never {
    ($($name:ident),*) => {$(
        fn $name<V: Visitor<'b>>(self, _: V) -> Result<V::Value, Unreadable> {
            Err(Unreadable::Shape("there is more in it than this build knows".to_string()))
        }
    )*};
}

impl<'b> Deserializer<'b> for &mut Reader<'b> {
    type Error = Unreadable;

    numbers!(
        deserialize_u16 visit_u16 u16, number;
        deserialize_u32 visit_u32 u32, number;
        deserialize_u64 visit_u64 u64, number;
        deserialize_i8 visit_i8 i8, signed;
        deserialize_i16 visit_i16 i16, signed;
        deserialize_i32 visit_i32 i32, signed;
        deserialize_i64 visit_i64 i64, signed
    );
    never!(deserialize_any, deserialize_ignored_any, deserialize_identifier);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_bool<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_bool(self.flag()?)
    }

    fn deserialize_u8<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let [byte] = self.array()?;
        visitor.visit_u8(byte)
    }

    fn deserialize_u128<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_u128(u128::from_le_bytes(self.array()?))
    }

    fn deserialize_f32<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_f64(f64::from_le_bytes(self.array()?))
    }

    fn deserialize_char<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let number = u32::try_from(self.number()?).ok().and_then(char::from_u32);
        visitor.visit_char(number.ok_or(Unreadable::Damaged)?)
    }

    fn deserialize_str<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_borrowed_bytes(self.bytes()?)
    }

    fn deserialize_byte_buf<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        if self.flag()? { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_unit<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'b>>(self, _: &'static str, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'b>>(self, _: &'static str, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let left = self.count()?;
        visitor.visit_seq(Elements { reader: self, left })
    }

    fn deserialize_tuple<V: Visitor<'b>>(self, count: usize, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_seq(Elements { reader: self, left: count })
    }

    fn deserialize_tuple_struct<V: Visitor<'b>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        self.deserialize_tuple(count, visitor)
    }

    fn deserialize_map<V: Visitor<'b>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let left = self.count()?;
        visitor.visit_map(Elements { reader: self, left })
    }

    fn deserialize_struct<V: Visitor<'b>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        let shape = self.shape(name)?;
        visitor.visit_map(Fields { reader: self, shape })
    }

    fn deserialize_enum<V: Visitor<'b>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        let shape = self.shape(name)?;
        visitor.visit_enum(Fields { reader: self, shape })
    }
}
