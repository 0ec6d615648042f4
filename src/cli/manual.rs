//! `vitrine man`: the manual pages, generated from the declarations of commands and options.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap_mangen::Man;

use super::{Status, output_file};
use crate::cli::aliases;
use crate::cli::output::outln;
use crate::files::write_atomically;

/// Write the manual pages, one for vitrine and one per command, for packages and for `man`.
#[derive(Args)]
#[command(after_help = "Example:\n  vitrine man --output ~/.local/share/man/man1")]
pub(super) struct Manual {
    /// Folder to write vitrine.1, vitrine-train.1, and the others to; it is created if it is missing.
    #[arg(long, value_name = "DIR", aliases = aliases::OUTPUT)]
    output: PathBuf,
}

impl Manual {
    pub(super) fn run(&self) -> Result<Status> {
        output_file::check_local("--output", &self.output)?;
        std::fs::create_dir_all(&self.output)
            .with_context(|| format!("--output {}", self.output.display()))?;
        for (name, page) in pages()? {
            let path = self.output.join(name);
            write_atomically(&path, &page)?;
            outln!("wrote {}", path.display())?;
        }
        Ok(Status::Done)
    }
}

/// The file name and the text, in roff, of every manual page.
fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    // The subcommand `help` prints the same texts as the pages, so it needs no page of its own.
    let mut program = super::command().disable_help_subcommand(true);
    // `build` gives each command the name of its page, such as `vitrine-train` instead of `train`.
    program.build();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let pages = std::iter::once(program.clone()).chain(commands);
    pages
        .map(|command| {
            let page = Man::new(command);
            let mut text = Vec::new();
            page.render(&mut text)?;
            Ok((page.get_filename(), text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_page_of_every_command_has_all_its_options() {
        let pages: BTreeMap<_, _> = pages().unwrap().into_iter().collect();
        let program = super::super::command();
        let commands: Vec<_> = program.get_subcommands().filter(|command| !command.is_hide_set()).collect();
        assert_eq!(pages.len(), commands.len() + 1);
        for command in commands {
            let name = command.get_name();
            let page = String::from_utf8(pages[&format!("vitrine-{name}.1")].clone()).unwrap();
            // roff escapes hyphens.
            let page = page.replace("\\-", "-");
            assert!(page.contains(&format!("vitrine {name}")), "the page of {name} has no example");
            for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(page.contains(&format!("--{option}")), "{name}: --{option} is missing");
            }
            let main = String::from_utf8(pages["vitrine.1"].clone()).unwrap().replace("\\-", "-");
            assert!(main.contains(&format!("vitrine-{name}(1)")), "vitrine.1 does not refer to {name}");
        }
    }
}
