//! A configuration value with its place, from TOML (a site file) or JSON (the management API): the reader does not
//! care.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// A value and where it stands in the text.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) span: Range<usize>,
    pub(super) data: Data,
}

/// A key and where it stands in the text.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) span: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum Data {
    String(String),
    Integer(i64),
    /// A number that is no 64-bit integer, as it was written.
    Number(String),
    Boolean(bool),
    Datetime(String),
    Null,
    Array(Vec<Value>),
    Table(Table),
}

pub(super) type Table = Vec<(Key, Value)>;

impl Value {
    /// What an error message says was found.
    pub(super) fn describe(&self) -> String {
        match &self.data {
            Data::String(text) => format!("the string {}", quote(text)),
            Data::Integer(number) => format!("the integer {number}"),
            Data::Number(text) => format!("the number {text}"),
            Data::Boolean(value) => format!("{value}"),
            Data::Datetime(text) => format!("the date {text}"),
            Data::Null => "null".to_owned(),
            Data::Array(items) if items.is_empty() => "an empty array".to_owned(),
            Data::Array(_) => "an array".to_owned(),
            Data::Table(_) => "a table".to_owned(),
        }
    }
}

/// `text` in quotes, cut where it would make a message unreadable.
pub(super) fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

pub(super) fn from_toml_table(table: DeTable<'_>) -> Table {
    let mut entries: Table = table
        .into_iter()
        .map(|(key, value)| {
            let span = key.span();
            (Key { name: key.into_inner().into_owned(), span }, from_toml(value.span(), value.into_inner()))
        })
        .collect();
    entries.sort_by_key(|(key, _)| key.span.start);
    entries
}

fn from_toml(span: Range<usize>, value: DeValue<'_>) -> Value {
    let data = match value {
        DeValue::String(text) => Data::String(text.into_owned()),
        DeValue::Integer(number) => {
            // The text keeps its underscores out but its sign in; what does not fit is reported where it is read.
            match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Data::Integer(number),
                Err(_) => Data::Number(number.to_string()),
            }
        }
        DeValue::Float(number) => Data::Number(number.to_string()),
        DeValue::Boolean(value) => Data::Boolean(value),
        DeValue::Datetime(date) => Data::Datetime(date.to_string()),
        DeValue::Array(items) => {
            Data::Array(items.into_iter().map(|item| from_toml(item.span(), item.into_inner())).collect())
        }
        DeValue::Table(table) => Data::Table(from_toml_table(table)),
    };
    Value { span, data }
}

pub(super) fn from_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let data = match value {
        Json::Null => Data::Null,
        Json::Bool(value) => Data::Boolean(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Data::Integer(number),
            None => Data::Number(number.to_string()),
        },
        Json::String(text) => Data::String(text.clone()),
        Json::Array(items) => Data::Array(items.iter().map(from_json).collect()),
        Json::Object(object) => Data::Table(
            object.iter().map(|(name, value)| (Key { name: name.clone(), span: 0..0 }, from_json(value))).collect(),
        ),
    };
    Value { span: 0..0, data }
}
