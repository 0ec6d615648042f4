//! Markdown tables of the keys of a configuration, with defaults and ranges found by reading and validating
//! configurations.

use serde_json::{Value, json};

use crate::declarations::{Declarations, documentation, name_of, type_of};

/// A configuration and what the program makes of it.
pub(crate) struct Keys<'a> {
    pub(crate) declarations: &'a Declarations,
    /// A valid configuration that has every nested table.
    pub(crate) sample: Value,
    /// Fills in the defaults of a configuration.
    pub(crate) resolve: fn(Value) -> Result<Value, String>,
    /// The error message of an invalid configuration.
    pub(crate) refuse: fn(Value) -> Option<String>,
}

impl Keys<'_> {
    /// A row for each key of a struct that lies at `path` in the configuration, and for the keys of the tables in it.
    pub(crate) fn table(&self, name: &str, path: &[&str]) -> String {
        assert_eq!((self.refuse)(self.sample.clone()), None, "the sample is valid");
        let mut table = "| key | default | values | description |\n|---|---|---|---|\n".to_owned();
        self.add_rows(name, path, path.len(), &mut table);
        table
    }

    /// Adds the rows of a struct; their keys begin after `hidden` parts of the path.
    fn add_rows(&self, name: &str, path: &[&str], hidden: usize, table: &mut String) {
        for field in self.declarations.fields(name) {
            let key = name_of(field);
            let path = [path, &[key.as_str()]].concat();
            let kind = type_of(&field.ty);
            let values = match kind.as_deref() {
                Some("bool") => "`true`, `false`".to_owned(),
                Some(kind) => self.spellings(kind).unwrap_or_else(|| self.range(&path)),
                None => self.range(&path),
            };
            let nested = kind.filter(|kind| self.is_table(kind, &path));
            let is_apart = nested.as_deref() == Some("Augmentation");
            let default = match nested {
                Some(_) if is_apart => "[below](#augmentation)".to_owned(),
                _ => self.default(&path),
            };
            let about = documentation(&field.attrs).replace('|', "\\|");
            *table += &format!("| `{}` | {default} | {values} | {about} |\n", path[hidden..].join("."));
            if let Some(kind) = nested.filter(|_| !is_apart) {
                self.add_rows(&kind, &path, hidden, table);
            }
        }
    }

    /// Whether a key holds a table whose keys have rows of their own.
    fn is_table(&self, kind: &str, path: &[&str]) -> bool {
        self.declarations.is_struct(kind) && self.sample.pointer(&pointer(path)).is_some_and(Value::is_object)
    }

    /// The spellings of an enum's values, if `kind` is one that files spell by name.
    fn spellings(&self, kind: &str) -> Option<String> {
        let variants = self.declarations.variants(kind)?;
        Some(variants.iter().map(|value| format!("`{}`", value.spelling)).collect::<Vec<_>>().join(", "))
    }

    /// The default of a key: the value that a configuration without the key has.
    fn default(&self, path: &[&str]) -> String {
        let mut without = self.sample.clone();
        let (key, table) = path.split_last().unwrap();
        without.pointer_mut(&pointer(table)).unwrap().as_object_mut().unwrap().remove(*key);
        let resolved = match (self.resolve)(without) {
            Ok(resolved) => resolved,
            Err(error) => {
                assert!(error.contains("missing field"), "{path:?}: {error}");
                return "required".to_owned();
            }
        };
        match resolved.pointer(&pointer(path)) {
            Some(value) => spelled(value),
            // Some keys are not written if they are false.
            None if (self.resolve)(self.with(path, json!(false))).as_ref() == Ok(&resolved) => {
                "`false`".to_owned()
            }
            None => "none".to_owned(),
        }
    }

    /// The sample with another value of a key.
    fn with(&self, path: &[&str], value: Value) -> Value {
        let mut configuration = self.sample.clone();
        let (key, table) = path.split_last().unwrap();
        configuration.pointer_mut(&pointer(table)).unwrap()[*key] = value;
        configuration
    }

    /// The range of a key's numbers, from the messages about numbers that are too small or too large; empty if there is
    /// none.
    fn range(&self, path: &[&str]) -> String {
        let key = path.last().unwrap();
        let mut found: Vec<Limit> = Vec::new();
        for number in [json!(-1.0), json!(0), json!(1_000_000_000_000_000_u64), json!(1e300)] {
            for value in [number.clone(), json!([number]), json!([number, 0.5])] {
                let message = (self.refuse)(self.with(path, value)).unwrap_or_default();
                // A message about another key, which this one no longer suits, says nothing about this one.
                let names = [format!("{key}`"), format!("{key}[0]`")];
                let about = names.iter().find_map(|name| Some(message.split_once(name)?.1));
                found.extend(about.map(limits).unwrap_or_default());
            }
        }
        range_of(&found)
    }

    /// A row for each value of the enums among the fields of some structs, which are given with the beginning of their
    /// keys.
    pub(crate) fn values(&self, structs: &[(&str, &str)]) -> String {
        let mut table = "| key | value | description |\n|---|---|---|\n".to_owned();
        for (name, prefix) in structs {
            for field in self.declarations.fields(name) {
                let variants = type_of(&field.ty).and_then(|kind| self.declarations.variants(&kind));
                for variant in variants.into_iter().flatten() {
                    let about = variant.about.replace('|', "\\|");
                    table +=
                        &format!("| `{prefix}{}` | `{}` | {about} |\n", name_of(field), variant.spelling);
                }
            }
        }
        table
    }
}

/// The JSON pointer to a key.
fn pointer(path: &[&str]) -> String {
    path.iter().map(|key| format!("/{key}")).collect()
}

/// A value as TOML spells it, in code; a table has no spelling, because its keys have rows.
fn spelled(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Object(_) => String::new(),
        Value::Number(number) => match number.as_f64() {
            Some(small) if small != 0.0 && small.abs() < 1e-3 => format!("`{small:e}`"),
            _ => format!("`{number}`"),
        },
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| spelled(value).replace('`', "")).collect();
            format!("`[{}]`", values.join(", "))
        }
        other => format!("`{other}`"),
    }
}

/// One end of a range, such as `at most 1`.
#[derive(Clone, Debug, PartialEq)]
struct Limit {
    words: &'static str,
    number: f64,
}

/// A range in words, from limits of which some may say the same.
fn range_of(limits: &[Limit]) -> String {
    // Of the same number, `above` and `below` allow less.
    let find = |open: &'static str, closed: &'static str| {
        [open, closed].into_iter().find_map(|words| limits.iter().find(|limit| limit.words == words))
    };
    match (find("above", "at least"), find("below", "at most")) {
        (None, None) => String::new(),
        (Some(low), None) => format!("{} {}", low.words, low.number),
        (None, Some(high)) => format!("{} {}", high.words, high.number),
        (Some(low), Some(high)) if (low.words, high.words) == ("at least", "at most") => {
            format!("{} to {}", low.number, high.number)
        }
        (Some(low), Some(high)) => format!("{} {}, {} {}", low.words, low.number, high.words, high.number),
    }
}

/// The limits that a message states, as `at least 0 and below 1`, `from 0 to 10`, or `[0, 1)`.
fn limits(message: &str) -> Vec<Limit> {
    let words: Vec<&str> = message.split_whitespace().collect();
    let number = |word: &str| word.trim_matches([',', ':', ';', '.', ')', ']', '[']).parse::<f64>().ok();
    let mut found = Vec::new();
    for pair in words.windows(2) {
        let words = match pair[0] {
            "least" | "from" => "at least",
            "above" => "above",
            "most" | "to" => "at most",
            "below" => "below",
            bracketed if bracketed.starts_with('[') && pair[1].ends_with(')') => {
                found.extend(number(bracketed).map(|number| Limit { words: "at least", number }));
                "below"
            }
            _ => continue,
        };
        found.extend(number(pair[1]).map(|number| Limit { words, number }));
    }
    found
}

#[test]
fn ranges_are_read_from_messages() {
    for (message, range) in [
        (" is -1: it must be at least 0 and below 1", "at least 0, below 1"),
        (" is -1: a number of degrees from 0 to 180 is needed", "0 to 180"),
        (" is 1: a probability in [0, 1) is needed", "at least 0, below 1"),
        (" is 9: a share from 0 to 1, and above 0 here", "above 0, at most 1"),
        (" is not divisible by 5", ""),
    ] {
        assert_eq!(range_of(&limits(message)), range, "{message}");
    }
}
