//! Where workers listen, and the file that lists them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};

use crate::files::read_text;
use crate::usage::usage;

/// Where a worker listens, by its public key: encrypted, and certain to be the one with this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The public key.
    pub id: String,
    /// Host and port, such as `node7:3700`.
    pub host: String,
}

impl Address {
    /// Reads a list of workers: one address a line; empty lines and those that begin with `#` do not count.
    ///
    /// # Errors
    /// If the file cannot be read, a line is no address, two addresses have the same key, or there is none.
    pub fn list(file: &Path) -> Result<Vec<Self>> {
        let shown = file.display();
        let text = read_text(file).with_context(|| format!("--workers {shown}: cannot be read"))?;
        let mut addresses: Vec<Self> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.parse::<Self>() {
                Ok(address) if addresses.contains(&address) => {
                    usage!("--workers {shown}: line {number}: {line} is there twice")
                }
                Ok(address) if addresses.iter().any(|other| other.id == address.id) => usage!(
                    "--workers {shown}: line {number}: {line} has the key of another line: give each worker a --key of its own"
                ),
                Ok(address) => addresses.push(address),
                // Another file may hold a secret.
                Err(problem) if line.starts_with("iroh:") => {
                    usage!("--workers {shown}: line {number}: {line}: {problem}")
                }
                Err(problem) => usage!("--workers {shown}: line {number}: {problem}"),
            }
        }
        if addresses.is_empty() {
            usage!(
                "--workers {shown}: lists no worker: write the address that each `vitrine worker` prints, one a line"
            );
        }
        Ok(addresses)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORMS: &str = "write iroh:ID@HOST:PORT as `vitrine worker` prints it";
        let (id, host) = text.strip_prefix("iroh:").and_then(|place| place.split_once('@')).ok_or(FORMS)?;
        let (name, port) = host.rsplit_once(':').ok_or(FORMS)?;
        if id.is_empty() || name.is_empty() || !port.parse().is_ok_and(|port: u16| port > 0) {
            return Err(FORMS.to_owned());
        }
        Ok(Self { id: id.to_owned(), host: host.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iroh:{}@{}", self.id, self.host)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["iroh:abc@node7:3700", "iroh:abc@[::1]:3700", "iroh:abc@127.0.0.1:3700"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "node7:3700",
            "iroh:abc@node7",
            "iroh:abc@node7:0",
            "iroh:@node7:1",
            "iroh:abc@:1",
            "iroh:abc@node7:70000",
            "ws://127.0.0.1:3700",
        ] {
            assert!(text.parse::<Address>().unwrap_err().contains("iroh:ID@HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn a_list_has_one_address_a_line() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("workers.txt");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Address::list(&file).map_err(|error| format!("{error:#}"))
        };
        let two = read("# two\n\niroh:abc@node7:3700\n iroh:def@127.0.0.1:3700 \n").unwrap();
        assert_eq!(two.len(), 2);
        for (text, part) in [
            ("# none\n", "lists no worker"),
            ("iroh:abc@node7:1\nhello\n", "line 2: write iroh:"),
            ("iroh:abc@node7:1\niroh:abc@node7:1\n", "twice"),
            ("iroh:abc@node7:1\niroh:abc@node8:1\n", "a --key of its own"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(part) && message.contains("workers.txt"), "{message}");
        }
        let missing = format!("{:#}", Address::list(&place.path().join("none")).unwrap_err());
        assert!(missing.contains("--workers") && missing.contains("none"), "{missing}");
    }
}
