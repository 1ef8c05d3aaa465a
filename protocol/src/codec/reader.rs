//! Reads bincode with an account of the memory that the value takes, kept while it is read.
//!
//! One byte can claim a hundred: an element of a vector may be encoded in a byte and take the size of the largest variant
//! of its enum. The library bounds the bytes it reads, not what becomes of them, so the reading of containers, texts and
//! boxes is done here, where the size of what is about to be made is known.

use bincode::config::Config;
use bincode::de::read::{BorrowReader, Reader};
use bincode::de::{BorrowDecode, Decode, DecoderImpl};
use bincode::error::DecodeError;
use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// How many times its own size an element is charged: a vector that grows holds its former half as well, and a tree keeps
/// its leaves half full.
const GROWTH: usize = 3;
/// How many elements are charged with the first one: the leaf of a tree has room for so many, and vectors begin with some.
const FIRST: usize = 16;
/// What a text costs beside its bytes: it becomes a name or path, which is copied once into a counted allocation.
const TEXT: usize = 32;

/// Reads a value from the front of `bytes`, which may take at most `memory` bytes on the heap. Returns it with the number of
/// bytes it was read from.
pub(super) fn read<T: DeserializeOwned>(
    bytes: &[u8],
    config: impl Config,
    memory: usize,
) -> Result<(T, usize), DecodeError> {
    let mut source = Source { decoder: DecoderImpl::new(Bytes(bytes), config, ()), memory, slot: size_of::<T>() };
    let value = T::deserialize(&mut source)?;
    Ok((value, bytes.len() - source.remaining()))
}

/// The bytes not yet read.
struct Bytes<'de>(&'de [u8]);

struct Source<'de, C: Config> {
    decoder: DecoderImpl<Bytes<'de>, C, ()>,
    /// Bytes that may still be taken on the heap.
    memory: usize,
    /// The size of the place that is kept for the value to come; a larger value must live on the heap.
    slot: usize,
}

impl<'de, C: Config> Source<'de, C> {
    fn remaining(&mut self) -> usize {
        use bincode::de::BorrowDecoder;
        self.decoder.borrow_reader().0.len()
    }

    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        match self.memory.checked_sub(bytes) {
            Some(rest) => {
                self.memory = rest;
                Ok(())
            }
            None => Err(DecodeError::custom("the value takes more memory than its class allows")),
        }
    }

    /// Charges a value that does not fit into the place kept for it: it is boxed.
    fn charge_boxed<V>(&mut self) -> Result<(), DecodeError> {
        if size_of::<V>() > self.slot { self.charge(size_of::<V>()) } else { Ok(()) }
    }

    fn charge_element<V>(&mut self, is_first: bool) -> Result<(), DecodeError> {
        self.charge(size_of::<V>().saturating_mul(if is_first { FIRST } else { GROWTH }))
    }

    /// The number of elements that follow. Each takes a byte at least, so a claim of more is refused before room is made.
    fn length(&mut self) -> Result<usize, DecodeError> {
        let length = usize::decode(&mut self.decoder)?;
        let remaining = self.remaining();
        if length > remaining {
            return Err(DecodeError::custom(format_args!(
                "{length} elements are claimed where {remaining} bytes are left"
            )));
        }
        Ok(length)
    }

    fn value<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, DecodeError> {
        self.slot = size_of::<S::Value>();
        seed.deserialize(self)
    }

    fn fields<V: Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.charge_boxed::<V::Value>()?;
        visitor.visit_seq(Fields { source: self, left: length })
    }
}

/// Forwards the types that take no memory of their own.
macro_rules! plain {
    ($($method:ident $visit:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            visitor.$visit(Decode::decode(&mut self.decoder)?)
        }
    )*};
}

impl<'de, C: Config> Deserializer<'de> for &mut Source<'de, C> {
    type Error = DecodeError;

    plain! {
        deserialize_bool visit_bool
        deserialize_i8 visit_i8
        deserialize_i16 visit_i16
        deserialize_i32 visit_i32
        deserialize_i64 visit_i64
        deserialize_i128 visit_i128
        deserialize_u8 visit_u8
        deserialize_u16 visit_u16
        deserialize_u32 visit_u32
        deserialize_u64 visit_u64
        deserialize_u128 visit_u128
        deserialize_f32 visit_f32
        deserialize_f64 visit_f64
        deserialize_char visit_char
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let text = <&'de str>::borrow_decode(&mut self.decoder)?;
        self.charge(text.len().saturating_add(TEXT))?;
        visitor.visit_borrowed_str(text)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let bytes = <&'de [u8]>::borrow_decode(&mut self.decoder)?;
        self.charge(bytes.len())?;
        visitor.visit_borrowed_bytes(bytes)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match u8::decode(&mut self.decoder)? {
            0 => visitor.visit_none(),
            1 => visitor.visit_some(self),
            other => Err(DecodeError::custom(format_args!("{other} where 0 or 1 says whether a value follows"))),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let left = self.length()?;
        visitor.visit_seq(Elements { source: self, left, is_first: true })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let left = self.length()?;
        visitor.visit_map(Elements { source: self, left, is_first: true })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.fields(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.fields(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.fields(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.charge_boxed::<V::Value>()?;
        visitor.visit_enum(self)
    }

    // The format is positional: bytes do not say what they are, and nothing can be skipped.

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::custom("a type that asks the bytes what they are cannot be read"))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::custom("a type that asks for the names of fields cannot be read"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::custom("a type that skips values cannot be read"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The fields of a struct or tuple: their memory is that of the whole.
struct Fields<'a, 'de, C: Config> {
    source: &'a mut Source<'de, C>,
    left: usize,
}

impl<'de, C: Config> SeqAccess<'de> for Fields<'_, 'de, C> {
    type Error = DecodeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.source.value(seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The elements of a container, each of which takes room on the heap.
struct Elements<'a, 'de, C: Config> {
    source: &'a mut Source<'de, C>,
    left: usize,
    is_first: bool,
}

impl<'de, C: Config> SeqAccess<'de> for Elements<'_, 'de, C> {
    type Error = DecodeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.source.charge_element::<S::Value>(std::mem::take(&mut self.is_first))?;
        self.source.value(seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de, C: Config> MapAccess<'de> for Elements<'_, 'de, C> {
    type Error = DecodeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.source.charge_element::<S::Value>(self.is_first)?;
        self.source.value(seed).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, DecodeError> {
        self.source.charge_element::<S::Value>(std::mem::take(&mut self.is_first))?;
        self.source.value(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de, C: Config> EnumAccess<'de> for &mut Source<'de, C> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), DecodeError> {
        let index = u32::decode(&mut self.decoder)?;
        let index: U32Deserializer<DecodeError> = index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de, C: Config> VariantAccess<'de> for &mut Source<'de, C> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, DecodeError> {
        self.value(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_seq(Fields { source: self, left: length })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_seq(Fields { source: self, left: fields.len() })
    }
}

impl Reader for Bytes<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), DecodeError> {
        bytes.copy_from_slice(self.take_bytes(bytes.len())?);
        Ok(())
    }

    fn peek_read(&mut self, length: usize) -> Option<&[u8]> {
        self.0.get(..length)
    }

    fn consume(&mut self, length: usize) {
        self.0 = self.0.get(length..).unwrap_or_default();
    }
}

impl<'de> BorrowReader<'de> for Bytes<'de> {
    fn take_bytes(&mut self, length: usize) -> Result<&'de [u8], DecodeError> {
        let Some((taken, rest)) = self.0.split_at_checked(length) else {
            return Err(DecodeError::UnexpectedEnd { additional: length - self.0.len() });
        };
        self.0 = rest;
        Ok(taken)
    }
}
