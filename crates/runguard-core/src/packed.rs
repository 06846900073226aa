//! States that are kept as plain bytes.
//!
//! What is read and written at every step, and has many members of one size, costs less as one run of bytes than member by
//! member.

/// Has a form of plain bytes.
pub(crate) trait Packed: Sized {
    fn pack(&self) -> Vec<u8>;
    /// `None` when the bytes are cut off or were made by something else.
    fn unpack(bytes: &[u8]) -> Option<Self>;
}

/// Serialises a [`Packed`] type as its bytes.
macro_rules! serialise_packed {
    ($packed:ty) => {
        impl serde::Serialize for $packed {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(&crate::packed::Packed::pack(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $packed {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Bytes;
                impl serde::de::Visitor<'_> for Bytes {
                    type Value = $packed;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("bytes of a kept state")
                    }

                    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<$packed, E> {
                        crate::packed::Packed::unpack(bytes).ok_or_else(|| E::custom("the bytes of a kept state are cut off"))
                    }
                }
                deserializer.deserialize_bytes(Bytes)
            }
        }
    };
}
pub(crate) use serialise_packed;
