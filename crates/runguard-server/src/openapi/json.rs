//! `json!` as `serde_json` has it, but each part is a call: written out in place, this document would be 0.4 MB of code.

use serde::Serialize;
use serde_json::{Map, Value};

macro_rules! json {
    (null) => { serde_json::Value::Null };
    ([$($item:tt)*]) => {{
        #[allow(unused_mut)]
        let mut items = Vec::new();
        $crate::openapi::json::json!(@item items; $($item)*);
        serde_json::Value::Array(items)
    }};
    ({$($field:tt)*}) => {{
        #[allow(unused_mut)]
        let mut fields = serde_json::Map::new();
        $crate::openapi::json::json!(@field fields; $($field)*);
        serde_json::Value::Object(fields)
    }};
    (@item $items:ident;) => {};
    (@item $items:ident; null $(, $($rest:tt)*)?) => {
        $items.push(serde_json::Value::Null);
        $($crate::openapi::json::json!(@item $items; $($rest)*);)?
    };
    (@item $items:ident; [$($item:tt)*] $(, $($rest:tt)*)?) => {
        $crate::openapi::json::add(&mut $items, $crate::openapi::json::json!([$($item)*]));
        $($crate::openapi::json::json!(@item $items; $($rest)*);)?
    };
    (@item $items:ident; {$($field:tt)*} $(, $($rest:tt)*)?) => {
        $crate::openapi::json::add(&mut $items, $crate::openapi::json::json!({$($field)*}));
        $($crate::openapi::json::json!(@item $items; $($rest)*);)?
    };
    (@item $items:ident; $value:expr $(, $($rest:tt)*)?) => {
        $crate::openapi::json::add(&mut $items, $crate::openapi::json::value(&$value));
        $($crate::openapi::json::json!(@item $items; $($rest)*);)?
    };
    (@field $fields:ident;) => {};
    (@field $fields:ident; $name:tt: [$($item:tt)*] $(, $($rest:tt)*)?) => {
        $crate::openapi::json::put(&mut $fields, $name, $crate::openapi::json::json!([$($item)*]));
        $($crate::openapi::json::json!(@field $fields; $($rest)*);)?
    };
    (@field $fields:ident; $name:tt: {$($field:tt)*} $(, $($rest:tt)*)?) => {
        $crate::openapi::json::put(&mut $fields, $name, $crate::openapi::json::json!({$($field)*}));
        $($crate::openapi::json::json!(@field $fields; $($rest)*);)?
    };
    (@field $fields:ident; $name:tt: $value:expr $(, $($rest:tt)*)?) => {
        $crate::openapi::json::put(&mut $fields, $name, $crate::openapi::json::value(&$value));
        $($crate::openapi::json::json!(@field $fields; $($rest)*);)?
    };
    ($value:expr) => { $crate::openapi::json::value(&$value) };
}
pub(super) use json;

#[inline(never)]
pub(super) fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}

#[inline(never)]
pub(super) fn add(items: &mut Vec<Value>, value: Value) {
    items.push(value);
}

/// Null for what JSON cannot say; a test compares the whole document.
#[inline(never)]
pub(super) fn value<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
