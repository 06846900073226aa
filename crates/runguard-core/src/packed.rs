//! States that are kept as plain bytes.
//!
//! What is read and written at every step, and has many members of one size, costs less as one run of bytes than member by
//! member.

use serde::Serialize;

/// Bytes that grow: what comes as one run is copied as one.
struct Behind(Vec<u8>);

impl postcard::ser_flavors::Flavor for Behind {
    type Output = Vec<u8>;

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Writes something behind what is in these bytes.
pub fn write_behind<T: Serialize + ?Sized>(bytes: Vec<u8>, value: &T) -> postcard::Result<Vec<u8>> {
    postcard::serialize_with_flavor(value, Behind(bytes))
}

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
