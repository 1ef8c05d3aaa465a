//! Reads bodies a second time, without the codec, and notes what they hold: which variants, which options, which containers.
//!
//! It knows the format from its description alone (bincode 2, standard configuration), so that golden bytes are also proof
//! that what is written is what is described. For tests: it reads bytes that were made by us.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// What was met in all bodies so far.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The enums by name and variants, because two may have the same name, with the indices met.
    enums: BTreeMap<(&'static str, &'static [&'static str]), BTreeSet<u32>>,
    /// Options and containers by where they stand, and whether one of them held something.
    filled: BTreeMap<String, bool>,
}

impl Survey {
    /// Reads a value from all of `bytes`, and notes what it holds.
    pub(super) fn read<T: DeserializeOwned>(&mut self, name: &str, bytes: &[u8]) -> Result<T, String> {
        let mut reader = Reader { survey: self, rest: bytes, place: name.to_owned() };
        let value = T::deserialize(&mut reader).map_err(|error| format!("{}: {error}", reader.place))?;
        if reader.rest.is_empty() { Ok(value) } else { Err(format!("{} bytes are left over", reader.rest.len())) }
    }

    /// Asks no more for all variants of these enums.
    pub(super) fn forget(&mut self, enums: &[&str]) {
        self.enums.retain(|(name, _), _| !enums.contains(name));
    }

    /// What no body held although its type can: each as a sentence.
    pub(super) fn gaps(&self) -> Vec<String> {
        let variants = self.enums.iter().flat_map(|((name, variants), met)| {
            let missing = variants.iter().zip(0..).filter(|(_, index)| !met.contains(index));
            missing.map(move |(variant, _)| format!("no sample holds the variant {name}::{variant}"))
        });
        let empty = self.filled.iter().filter(|(_, filled)| !**filled);
        variants.chain(empty.map(|(place, _)| format!("{place} is empty in every sample"))).collect()
    }
}

struct Reader<'a, 'de> {
    survey: &'a mut Survey,
    rest: &'de [u8],
    /// Where the value to come stands: `Struct.field` or `Enum::Variant`.
    place: String,
}

fn refused(why: impl Display) -> Error {
    Error::custom(why)
}

impl<'de> Reader<'_, 'de> {
    fn take(&mut self, length: usize) -> Result<&'de [u8], Error> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return Err(refused(format_args!("{length} bytes are needed where {} are left", self.rest.len())));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// A number below 251 is its own byte; else a byte says how many follow, little endian.
    fn number(&mut self) -> Result<u128, Error> {
        let [first] = self.fixed()?;
        Ok(match first {
            251 => u16::from_le_bytes(self.fixed()?).into(),
            252 => u32::from_le_bytes(self.fixed()?).into(),
            253 => u64::from_le_bytes(self.fixed()?).into(),
            254 => u128::from_le_bytes(self.fixed()?),
            255 => return Err(refused("a number begins with 255")),
            small => small.into(),
        })
    }

    fn narrow<T: TryFrom<u128>>(&mut self) -> Result<T, Error> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| refused(format_args!("{number} is too large for its type")))
    }

    /// Signed numbers are folded so that small ones stay small: 0, -1, 1, -2, …
    fn signed<T: TryFrom<i128>>(&mut self) -> Result<T, Error> {
        let folded = self.number()?;
        let number = (folded >> 1).cast_signed() ^ -((folded & 1).cast_signed());
        T::try_from(number).map_err(|_| refused(format_args!("{number} is too large for its type")))
    }

    fn note(&mut self, is_filled: bool) {
        *self.survey.filled.entry(self.place.clone()).or_default() |= is_filled;
    }

    fn container(&mut self) -> Result<usize, Error> {
        let length: usize = self.narrow()?;
        self.note(length > 0);
        Ok(length)
    }
}

macro_rules! numbers {
    ($($method:ident $read:ident $visit:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.$read()?)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Reader<'_, 'de> {
    type Error = Error;

    numbers! {
        deserialize_u16 narrow visit_u16
        deserialize_u32 narrow visit_u32
        deserialize_u64 narrow visit_u64
        deserialize_u128 narrow visit_u128
        deserialize_i16 signed visit_i16
        deserialize_i32 signed visit_i32
        deserialize_i64 signed visit_i64
        deserialize_i128 signed visit_i128
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u8(u8::from_le_bytes(self.fixed()?))
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i8(i8::from_le_bytes(self.fixed()?))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.fixed()? {
            [0] => visitor.visit_bool(false),
            [1] => visitor.visit_bool(true),
            [other] => Err(refused(format_args!("{other} where 0 or 1 says false or true"))),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let length = self.narrow()?;
        visitor.visit_borrowed_str(std::str::from_utf8(self.take(length)?).map_err(refused)?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let length = self.container()?;
        visitor.visit_borrowed_bytes(self.take(length)?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let [follows] = self.fixed()?;
        self.note(follows == 1);
        match follows {
            0 => visitor.visit_none(),
            1 => visitor.visit_some(self),
            other => Err(refused(format_args!("{other} where 0 or 1 says whether a value follows"))),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        name.clone_into(&mut self.place);
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.container()?;
        let place = format!("{}[]", self.place);
        visitor.visit_seq(Elements { reader: self, left, place })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.container()?;
        let place = format!("{}[]", self.place);
        visitor.visit_map(Elements { reader: self, left, place })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        let place = self.place.clone();
        visitor.visit_seq(Fields {
            reader: self,
            places: (0..length).map(|at| format!("{place}.{at}")).collect(),
            next: 0,
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        name.clone_into(&mut self.place);
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        name.clone_into(&mut self.place);
        visitor.visit_seq(Fields::of(self, fields))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(Variant { reader: self, name, variants })
    }

    // No type that is sent or kept has one of these; one that begins to is met here.
    serde::forward_to_deserialize_any! { f32 f64 char identifier ignored_any }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(refused("a type that the survey cannot read: teach it, or choose another"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

struct Fields<'r, 'a, 'de> {
    reader: &'r mut Reader<'a, 'de>,
    places: Vec<String>,
    next: usize,
}

impl<'r, 'a, 'de> Fields<'r, 'a, 'de> {
    fn of(reader: &'r mut Reader<'a, 'de>, fields: &[&str]) -> Self {
        let places = fields.iter().map(|field| format!("{}.{field}", reader.place)).collect();
        Self { reader, places, next: 0 }
    }
}

impl<'de> SeqAccess<'de> for Fields<'_, '_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(place) = self.places.get(self.next) else { return Ok(None) };
        self.reader.place.clone_from(place);
        self.next += 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

struct Elements<'r, 'a, 'de> {
    reader: &'r mut Reader<'a, 'de>,
    left: usize,
    place: String,
}

impl<'de> Elements<'_, '_, 'de> {
    fn element<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.reader.place.clone_from(&self.place);
        seed.deserialize(&mut *self.reader)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, '_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.element(seed).map(Some)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_, 'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.element(seed).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.element(seed)
    }
}

struct Variant<'r, 'a, 'de> {
    reader: &'r mut Reader<'a, 'de>,
    name: &'static str,
    variants: &'static [&'static str],
}

impl<'de> EnumAccess<'de> for Variant<'_, '_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let index: u32 = self.reader.narrow()?;
        let variant = usize::try_from(index).ok().and_then(|at| self.variants.get(at));
        let variant = variant.ok_or_else(|| refused(format_args!("{} has no variant {index}", self.name)))?;
        self.reader.survey.enums.entry((self.name, self.variants)).or_default().insert(index);
        self.reader.place = format!("{}::{variant}", self.name);
        let index: U32Deserializer<Error> = index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.reader.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Fields::of(self.reader, fields))
    }
}
