//! `vitrine completions`: shell completion scripts, generated from the declarations of commands and options.

use anyhow::Result;
use clap::Args;
use clap_complete::{Shell, generate};

use super::Status;
use crate::cli::output;

/// Print the script that makes a shell complete vitrine's commands and options.
///
/// Where the script belongs depends on the shell; the examples show the usual places.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    vitrine completions bash > ~/.local/share/bash-completion/completions/vitrine\n  \
    vitrine completions zsh > ~/.zfunc/_vitrine    # a folder in fpath\n  \
    vitrine completions fish > ~/.config/fish/completions/vitrine.fish")]
pub(super) struct Completions {
    /// Shell to complete in.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Result<Status> {
        output::write(&script(self.shell))?;
        Ok(Status::Done)
    }
}

/// The completion script of a shell.
fn script(shell: Shell) -> Vec<u8> {
    let mut command = super::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_completes_every_command_and_its_options() {
        for &shell in Shell::value_variants() {
            let script = String::from_utf8(script(shell)).unwrap();
            for command in super::super::command().get_subcommands().filter(|command| !command.is_hide_set())
            {
                let name = command.get_name();
                assert!(script.contains(name), "{shell}: {name}");
                for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
                    assert!(script.contains(option), "{shell}: {name} --{option}");
                }
            }
        }
    }
}
