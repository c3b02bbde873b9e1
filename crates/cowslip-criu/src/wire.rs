//! Protocol Buffers messages, edited without a schema: fields that are not touched stay as they are, known or not
//! (<https://protobuf.dev/programming-guides/encoding/>).

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// The content of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Number(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Vec<u8>),
}

/// A message: its fields in order, each with its number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Message {
    fields: Vec<(u32, Value)>,
}

impl Message {
    /// Decodes a message. Groups, which CRIU does not use, are refused.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, String> {
        let wrong = |error| format!("it is no message of CRIU's: {error}");
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let (number, wire_type) = decode_key(&mut bytes).map_err(wrong)?;
            let cut = || "a message is cut short".to_owned();
            let value = match wire_type {
                WireType::Varint => Value::Number(decode_varint(&mut bytes).map_err(wrong)?),
                WireType::SixtyFourBit => {
                    Value::Fixed64(bytes.try_get_u64_le().map_err(|_| cut())?)
                }
                WireType::ThirtyTwoBit => {
                    Value::Fixed32(bytes.try_get_u32_le().map_err(|_| cut())?)
                }
                WireType::LengthDelimited => {
                    let length = decode_varint(&mut bytes).map_err(wrong)?;
                    let length = usize::try_from(length).map_err(|_| cut())?;
                    let (content, rest) = bytes.split_at_checked(length).ok_or_else(cut)?;
                    bytes = rest;
                    Value::Bytes(content.to_vec())
                }
                WireType::StartGroup | WireType::EndGroup => {
                    return Err("it has a group, which CRIU does not write".into());
                }
            };
            fields.push((number, value));
        }
        Ok(Self { fields })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, value) in &self.fields {
            match value {
                Value::Number(value) => {
                    encode_key(*number, WireType::Varint, &mut bytes);
                    encode_varint(*value, &mut bytes);
                }
                Value::Fixed64(value) => {
                    encode_key(*number, WireType::SixtyFourBit, &mut bytes);
                    bytes.extend(value.to_le_bytes());
                }
                Value::Fixed32(value) => {
                    encode_key(*number, WireType::ThirtyTwoBit, &mut bytes);
                    bytes.extend(value.to_le_bytes());
                }
                Value::Bytes(content) => {
                    encode_key(*number, WireType::LengthDelimited, &mut bytes);
                    encode_varint(content.len() as u64, &mut bytes);
                    bytes.extend(content);
                }
            }
        }
        bytes
    }

    pub(crate) fn has(&self, field: u32) -> bool {
        self.fields.iter().any(|(number, _)| *number == field)
    }

    /// A number; 0 if it is absent, as in Protocol Buffers.
    pub(crate) fn number(&self, field: u32) -> u64 {
        self.numbers(field).last().unwrap_or(0)
    }

    /// The values of a repeated number.
    pub(crate) fn numbers(&self, field: u32) -> impl Iterator<Item = u64> {
        self.fields.iter().filter_map(move |(number, value)| match value {
            Value::Number(value) if *number == field => Some(*value),
            _ => None,
        })
    }

    /// Gives a field one value, in its place if it has one.
    fn put(&mut self, field: u32, value: Value) {
        let mut left = Some(value);
        self.fields.retain_mut(|(number, old)| {
            if *number != field {
                return true;
            }
            left.take().is_some_and(|value| {
                *old = value;
                true
            })
        });
        self.fields.extend(left.map(|value| (field, value)));
    }

    pub(crate) fn set(&mut self, field: u32, value: u64) {
        self.put(field, Value::Number(value));
    }

    pub(crate) fn set_text(&mut self, field: u32, text: &str) {
        self.put(field, Value::Bytes(text.as_bytes().to_vec()));
    }

    pub(crate) fn set_message(&mut self, field: u32, message: &Self) {
        self.put(field, Value::Bytes(message.encode()));
    }

    /// Gives a repeated message its values.
    pub(crate) fn set_messages(&mut self, field: u32, messages: impl IntoIterator<Item = Self>) {
        self.remove(field);
        let values = messages.into_iter().map(|message| (field, Value::Bytes(message.encode())));
        self.fields.extend(values);
    }

    /// Gives a repeated number its values.
    pub(crate) fn set_numbers(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        self.remove(field);
        self.fields.extend(values.into_iter().map(|value| (field, Value::Number(value))));
    }

    pub(crate) fn remove(&mut self, field: u32) {
        self.fields.retain(|(number, _)| *number != field);
    }

    /// Changes each message that is a value of a field.
    pub(crate) fn edit(
        &mut self,
        field: u32,
        mut change: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        for (number, value) in &mut self.fields {
            if let Value::Bytes(content) = value
                && *number == field
            {
                let mut inner = Self::decode(content)?;
                change(&mut inner)?;
                *content = inner.encode();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_edited_stays() {
        // Field 1: 150; field 2: "abc"; field 3, fixed; field 99: 7; field 1 again: 5.
        let bytes = [
            &[0x08, 0x96, 0x01, 0x12, 3, b'a', b'b', b'c', 0x1d, 1, 2, 3, 4][..],
            &[0x98, 0x06, 7, 0x08, 5],
        ]
        .concat();
        let message = Message::decode(&bytes).unwrap();
        assert_eq!(message.encode(), bytes);
        assert_eq!(message.numbers(1).collect::<Vec<_>>(), [150, 5]);
        let mut edited = message.clone();
        edited.set(1, 2);
        edited.set_text(2, "de");
        edited.remove(3);
        edited.set(4, 1);
        assert_eq!(edited.encode(), [8, 2, 0x12, 2, b'd', b'e', 0x98, 0x06, 7, 0x20, 1]);
    }

    #[test]
    fn messages_within_are_edited() {
        let mut message = Message::default();
        message.edit(5, |_| panic!("there is none")).unwrap();
        message.set_message(5, &Message::default());
        let change = |inner: &mut Message| {
            inner.set_numbers(1, [1, 300]);
            Ok(())
        };
        message.edit(5, change).unwrap();
        assert_eq!(message.encode(), [0x2a, 5, 8, 1, 8, 0xac, 2]);
        let see = |inner: &mut Message| {
            assert_eq!(inner.number(1), 300);
            Ok(())
        };
        message.edit(5, see).unwrap();
    }

    #[test]
    fn damage_is_an_error() {
        for bytes in [&[0x12, 200, 1, 0][..], &[0x08], &[0x1d, 1], &[0x0b], &[0x00, 0x00]] {
            assert!(Message::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
