//! Python values as JSON text, so that arguments can be compared whatever they are made of.
//!
//! Plain values are written here. What objects of other kinds stand for is said by `runguard._plain.plain`.

use crate::errors;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple};
use runguard_core::detect::stall::CallEffect;
use runguard_core::fingerprint::{self, Volatile};
use runguard_core::prices::Prompt;
pub(crate) use runguard_core::run::sentence;
use std::borrow::Cow;
use std::fmt::Write;

/// Most bytes of text that one set of arguments, or one result, may have.
const LARGEST: usize = 8 * 1024 * 1024;

/// The JSON text of a value, or why there is none: it contains itself, is nested too deep, or is too large.
pub(crate) fn json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let mut writer = Writer { out: String::with_capacity(256), open: Vec::new() };
    writer.write(value)?;
    Ok(writer.out)
}

/// Of a longer text the interpreter is released while it is read; for a shorter one that would take longer than reading it.
const SHORT: usize = 4 * 1024;

/// Works on a text, without the interpreter where that pays.
pub(crate) fn aside<R: Send>(py: Python<'_>, length: usize, work: impl FnOnce() -> R + Send) -> R {
    if length <= SHORT { work() } else { py.detach(work) }
}

/// The fingerprint of arguments.
pub(crate) fn fingerprint(args: &Bound<'_, PyAny>, volatile: &Volatile) -> PyResult<u64> {
    fingerprint_of_text(args.py(), &json(args)?, volatile)
}

/// The fingerprint of arguments, and what a call with them does.
pub(crate) fn arguments(tool: &str, args: &Bound<'_, PyAny>, volatile: &Volatile) -> PyResult<(u64, CallEffect)> {
    let text = json(args)?;
    Ok((fingerprint_of_text(args.py(), &text, volatile)?, CallEffect::of(tool, &text)))
}

fn fingerprint_of_text(py: Python<'_>, text: &str, volatile: &Volatile) -> PyResult<u64> {
    aside(py, text.len(), || fingerprint::of_text_without(text, volatile)).map_err(|error| errors::invalid_input(py, sentence(&error)))
}

/// What a function is called with, by the names of its parameters.
pub(crate) struct Called<'a, 'py> {
    /// Of what may be passed by place.
    pub(crate) names: &'a [String],
    /// Parameters that a framework fills.
    pub(crate) extra: &'a [String],
    pub(crate) args: &'a Bound<'py, PyTuple>,
    pub(crate) kwargs: &'a Bound<'py, PyDict>,
}

impl Called<'_, '_> {
    /// The fingerprint of what the tool was asked, and what it does. Where that cannot be compared as a whole, of what is plain in it.
    pub(crate) fn arguments(&self, tool: &str, volatile: &Volatile) -> PyResult<(u64, CallEffect)> {
        let py = self.args.py();
        let of = |text: &str| Ok((fingerprint_of_text(py, text, volatile)?, CallEffect::of(tool, text)));
        match self.json(is_asked).and_then(|text| of(&text)) {
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyValueError>(py) => {
                of(&self.json(|value: &Bound<'_, PyAny>| Ok(is_single(value)))?)
            }
            read => read,
        }
    }

    fn json(&self, counts: impl Fn(&Bound<'_, PyAny>) -> PyResult<bool>) -> PyResult<String> {
        let mut writer = Writer { out: String::with_capacity(256), open: Vec::new() };
        writer.out.push('{');
        let member = |writer: &mut Writer, name: &str, value: &Bound<'_, PyAny>| -> PyResult<()> {
            if self.extra.iter().any(|extra| extra == name) || !counts(value)? {
                return Ok(());
            }
            if writer.out.len() > 1 {
                writer.out.push(',');
            }
            writer.string(name);
            writer.out.push(':');
            writer.write(value)
        };
        for (name, value) in self.names.iter().zip(self.args.iter()) {
            member(&mut writer, name, &value)?;
        }
        if self.args.len() > self.names.len() {
            let rest = PyList::empty(self.args.py());
            for value in self.args.iter().skip(self.names.len()) {
                if counts(&value)? {
                    rest.append(value)?;
                }
            }
            member(&mut writer, "*", rest.as_any())?;
        }
        let by_place = &self.names[..self.names.len().min(self.args.len())];
        for (name, value) in self.kwargs.iter() {
            let name = name.cast::<PyString>().map_err(PyErr::from).and_then(|name| Ok(text(name)?.into_owned()))?;
            // Given twice it fails when it is called.
            if !by_place.contains(&name) {
                member(&mut writer, &name, &value)?;
            }
        }
        writer.out.push('}');
        Ok(writer.out)
    }
}

/// Whether the model gave it, and not a framework.
fn is_asked(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static IS_EXTRA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if is_single(value)
        || value.is_exact_instance_of::<PyList>()
        || value.is_exact_instance_of::<PyDict>()
        || value.is_exact_instance_of::<PyTuple>()
        || value.is_exact_instance_of::<PySet>()
        || value.is_exact_instance_of::<PyFrozenSet>()
    {
        return Ok(true);
    }
    let py = value.py();
    let is_extra = IS_EXTRA.get_or_try_init(py, || PyResult::Ok(py.import("runguard._arguments")?.getattr("is_extra")?.unbind()))?;
    Ok(!is_extra.bind(py).call1((value,))?.is_truthy()?)
}

/// A text, a number, or nothing: what has no parts.
fn is_single(value: &Bound<'_, PyAny>) -> bool {
    value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_none()
}

/// A Python string; half a character (a lone surrogate) is no UTF-8 and written as an escape, so that different ones stay different.
pub(crate) fn text<'a>(text: &'a Bound<'_, PyString>) -> PyResult<Cow<'a, str>> {
    match text.to_cow() {
        Ok(read) => Ok(read),
        Err(_) => text.call_method1("encode", ("utf-8", "backslashreplace"))?.call_method1("decode", ("utf-8",))?.extract().map(Cow::Owned),
    }
}

/// How large a prompt is: all texts in a value. What cannot be read in it is no text.
pub(crate) fn prompt(value: &Bound<'_, PyAny>) -> PyResult<Prompt> {
    let mut prompt = Prompt::default();
    measure(value, Measured::Prompt, &mut prompt, 0)?;
    Ok(prompt)
}

/// The bytes of what a model has written, in whatever form it came; as [`runguard_core::prices::answer_size`] counts them.
pub(crate) fn answer_size(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let mut written = Prompt::default();
    measure(value, Measured::Answer, &mut written, 0)?;
    Ok(written.bytes_of_answer())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measured {
    Prompt,
    /// Names of fields are added by the service, and numbers are places and counts.
    Answer,
}

fn measure(value: &Bound<'_, PyAny>, what: Measured, prompt: &mut Prompt, depth: usize) -> PyResult<()> {
    if depth > fingerprint::DEEPEST {
        return Ok(());
    }
    if let Ok(given) = value.cast::<PyString>() {
        prompt.add(&text(given)?);
    } else if let Ok(dict) = value.cast::<PyDict>() {
        for (key, value) in dict.iter() {
            if what == Measured::Prompt {
                measure(&key, what, prompt, depth + 1)?;
            }
            measure(&value, what, prompt, depth + 1)?;
        }
    } else if let Ok(items) = value.cast::<PyList>() {
        for item in items.iter() {
            measure(&item, what, prompt, depth + 1)?;
        }
    } else if let Ok(items) = value.cast::<PyTuple>() {
        for item in items.iter() {
            measure(&item, what, prompt, depth + 1)?;
        }
    } else if value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>() {
        prompt.attachments += 1;
    } else if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
        if what == Measured::Prompt {
            prompt.add_number(value.str().map_or(1, |digits| digits.len().unwrap_or(1)));
        }
    } else if let Ok(fields) = value.getattr("__dict__") {
        // Messages of frameworks and answers of clients: their fields.
        if let Ok(fields) = fields.cast::<PyDict>() {
            for (_, value) in fields.iter() {
                measure(&value, what, prompt, depth + 1)?;
            }
        }
    }
    Ok(())
}

struct Writer {
    out: String,
    /// The containers being written, outermost first, by identity.
    open: Vec<usize>,
}

impl Writer {
    fn write(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        self.check_size(py)?;
        if let Ok(given) = value.cast_exact::<PyString>() {
            self.string(&text(given)?);
            return self.check_size(py);
        }
        if value.is_none() {
            self.out.push_str("null");
            return Ok(());
        }
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            return self.inside(value, |writer| writer.members(dict));
        }
        if let Ok(items) = value.cast_exact::<PyList>() {
            return self.inside(value, |writer| writer.items(items.iter()));
        }
        if let Ok(flag) = value.cast_exact::<PyBool>() {
            self.out.push_str(if flag.is_true() { "true" } else { "false" });
            return Ok(());
        }
        if let Ok(number) = value.cast_exact::<PyInt>() {
            return self.whole(number);
        }
        if let Ok(number) = value.cast_exact::<PyFloat>() {
            let number = number.value();
            if number.is_finite() {
                // Display of a float is its shortest exact digits; writing to a string cannot fail.
                let _ = write!(self.out, "{number:e}");
            } else {
                self.string(&number.to_string());
            }
            return Ok(());
        }
        if let Ok(items) = value.cast_exact::<PyTuple>() {
            return self.inside(value, |writer| writer.items(items.iter()));
        }
        if value.is_exact_instance_of::<PySet>() || value.is_exact_instance_of::<PyFrozenSet>() {
            return self.inside(value, |writer| writer.set(value));
        }
        self.inside(value, |writer| {
            let plain = plain_form(py)?.call1((value,)).map_err(|error| not_readable(value, error))?;
            writer.write(&plain)
        })
    }

    /// Writes what is in a container, unless it is already open further out.
    fn inside(&mut self, container: &Bound<'_, PyAny>, write: impl FnOnce(&mut Self) -> PyResult<()>) -> PyResult<()> {
        let identity = container.as_ptr() as usize;
        if self.open.contains(&identity) {
            let problem = "The arguments contain themselves, so they cannot be compared. Pass plain JSON-like values.";
            return Err(errors::invalid_input(container.py(), problem));
        }
        // One object may take two levels: itself and its plain form.
        if self.open.len() >= 2 * fingerprint::DEEPEST {
            let problem = format!("The arguments are nested more than {} deep. Pass flatter values.", fingerprint::DEEPEST);
            return Err(errors::invalid_input(container.py(), problem));
        }
        self.open.push(identity);
        let written = write(self);
        self.open.pop();
        written
    }

    fn items<'py>(&mut self, items: impl Iterator<Item = Bound<'py, PyAny>>) -> PyResult<()> {
        self.out.push('[');
        for (position, item) in items.enumerate() {
            if position > 0 {
                self.out.push(',');
            }
            self.write(&item)?;
        }
        self.out.push(']');
        Ok(())
    }

    fn members(&mut self, dict: &Bound<'_, PyDict>) -> PyResult<()> {
        self.out.push('{');
        for (position, (key, value)) in dict.iter().enumerate() {
            if position > 0 {
                self.out.push(',');
            }
            if let Ok(key) = key.cast_exact::<PyString>() {
                self.string(&text(key)?);
            } else {
                self.key(&key)?;
            }
            self.out.push(':');
            self.write(&value)?;
        }
        self.out.push('}');
        Ok(())
    }

    /// A key that is no string becomes one, as JSON writers do: 1 and "1" are one key, True is "true".
    fn key(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let start = self.out.len();
        self.write(key)?;
        if !self.out[start..].starts_with('"') {
            let written = self.out.split_off(start);
            self.string(&written);
        }
        Ok(())
    }

    /// A set has no order, and Python gives it another one in every process: here the items are sorted by their canonical form.
    fn set(&mut self, set: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut items = Vec::new();
        for item in set.try_iter()? {
            let start = self.out.len();
            self.write(&item?)?;
            let written = self.out.split_off(start);
            let canonical = fingerprint::canonical_text(&written, Volatile::NONE);
            items.push((canonical.map_err(|error| errors::invalid_input(set.py(), sentence(&error)))?, written));
        }
        items.sort_unstable();
        let items: Vec<String> = items.into_iter().map(|(_, written)| written).collect();
        self.out.push('[');
        self.out.push_str(&items.join(","));
        self.out.push(']');
        self.check_size(set.py())
    }

    fn whole(&mut self, number: &Bound<'_, PyInt>) -> PyResult<()> {
        if let Ok(number) = number.extract::<i64>() {
            // Writing to a string cannot fail.
            let _ = write!(self.out, "{number}");
        } else {
            let digits = number.str().map_err(|error| not_readable(number, error))?;
            self.out.push_str(&digits.to_cow()?);
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' | '\\' => self.out.extend(['\\', letter]),
                // Writing to a string cannot fail.
                '\0'..='\x1f' => drop(write!(self.out, "\\u{:04x}", letter as u32)),
                _ => self.out.push(letter),
            }
        }
        self.out.push('"');
    }

    fn check_size(&self, py: Python<'_>) -> PyResult<()> {
        if self.out.len() <= LARGEST {
            return Ok(());
        }
        let problem =
            format!("The arguments are larger than {} MiB. Pass a reference (a path, an id, a hash) instead of the data.", LARGEST >> 20);
        Err(errors::invalid_input(py, problem))
    }
}

fn not_readable(value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = value.py();
    let kind = value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    let refused = errors::invalid_input(
        py,
        format!("A value of type {kind} among the arguments cannot be read ({error}). Pass plain JSON-like values."),
    );
    refused.set_cause(py, Some(error));
    refused
}

fn plain_form(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static PLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    PLAIN.get_or_try_init(py, || Ok(py.import("runguard._plain")?.getattr("plain")?.unbind())).map(|function| function.bind(py))
}
