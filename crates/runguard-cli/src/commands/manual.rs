//! `runguard completions` and `runguard man`: the command line told to shells and to `man`.

use crate::failure::Failure;
use crate::output;
use clap::{Args, Command};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const WHERE: &str = "\
Where they go:
  bash  runguard completions bash > ~/.local/share/bash-completion/completions/runguard
  zsh   runguard completions zsh > ~/.zfunc/_runguard      (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
  fish  runguard completions fish > ~/.config/fish/completions/runguard.fish";

#[derive(Debug, Args)]
#[command(after_help = WHERE)]
pub(crate) struct Completions {
    /// Whose completions
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    /// GNU bash, with the package bash-completion
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

impl Completions {
    pub(crate) fn run(self, mut command: Command) -> Result<(), Failure> {
        let shell = match self.shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "runguard", &mut script);
        Ok(std::io::stdout().lock().write_all(&script)?)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard man | man -l -                         read it
  runguard man --out ~/.local/share/man/man1      install those of all commands")]
pub(crate) struct Man {
    /// Write one page a command into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, mut command: Command) -> Result<(), Failure> {
        // What the whole command line shares is then part of each command.
        command.build();
        let Some(folder) = &self.out else {
            return Ok(std::io::stdout().lock().write_all(&page(&command)?)?);
        };
        let mut pages = Vec::new();
        gather(&command, &mut pages)?;
        std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
        for (name, page) in &pages {
            let file = folder.join(format!("{name}.1"));
            std::fs::write(&file, page).map_err(|error| unwritten(&file, &error))?;
        }
        output::line(&format!("{} in {}", output::count(pages.len() as u64, "page"), folder.display()))
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

/// `runguard`, `runguard-key`, `runguard-key-create`, …
fn gather(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> Result<(), Failure> {
    pages.push((command.get_display_name().unwrap_or(command.get_name()).to_owned(), page(command)?));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set()) {
        gather(inner, pages)?;
    }
    Ok(())
}
