//! edit.

use super::{Context, apply};
use crate::client::{Failure, connect};
use crate::output::{print, print_json};
use api::v1;
use config::{Texts, folder_of};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write, stderr, stdin};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::{Builder, TempPath};
use tokio::signal::unix::{SignalKind, signal};

/// A copy of a host's file that somebody edits. It lies beside the file, so that the files which both include are the
/// same, and that both can change places.
pub struct Edited {
    file: PathBuf,
    /// The text of the file when it was copied.
    before: String,
    copy: TempPath,
}

impl Edited {
    /// Copies a file, and has somebody edit the copy. `None`: the text is as it was.
    pub fn of(file: &Path) -> Result<Option<Self>, Failure> {
        let edited = Self::copied(file).map_err(|e| Failure::Refused(format!("{}: {e}", file.display())))?;
        edited.ask()?;
        let text = std::fs::read_to_string(&edited.copy).map_err(|e| edited.unchanged(&e.to_string()))?;
        Ok((text != edited.before).then_some(edited))
    }

    fn copied(file: &Path) -> io::Result<Self> {
        // The file to which a link leads changes, not the link.
        let file = file.canonicalize()?;
        let before = std::fs::read_to_string(&file)?;
        let mut copy = Builder::new().prefix(".host-").suffix(".toml").tempfile_in(folder_of(&file))?;
        copy.write_all(before.as_bytes())?;
        // From now on Ctrl-C is the editor's, and does not end this program under it.
        let _ = (signal(SignalKind::interrupt())?, signal(SignalKind::quit())?);
        Ok(Self { file, before, copy: copy.into_temp_path() })
    }

    /// Runs the editor.
    fn ask(&self) -> Result<(), Failure> {
        let named =
            ["VISUAL", "EDITOR"].into_iter().filter_map(std::env::var_os).find(|name| !name.is_empty());
        let editor = named.unwrap_or_else(|| OsString::from("vi"));
        // The variables may hold arguments too.
        let mut line = editor.clone();
        line.push(" \"$1\"");
        let status = Command::new("sh").arg("-c").arg(line).arg("sh").arg(&self.copy).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.unchanged(&format!("the editor {} failed: {status}", editor.display()))),
            Err(e) => Err(self.unchanged(&format!("no shell to run the editor: {e}"))),
        }
    }

    fn unchanged(&self, why: &str) -> Failure {
        Failure::Refused(format!("{}: nothing was changed\n{why}", self.file.display()))
    }

    /// Puts the edited file in the place of the one that it was copied of, and in force. If it is refused, the old one
    /// comes back, and whoever sits at the terminal may edit the copy again.
    pub async fn settle(self, on: &mut Context, confirm_seconds: u32) -> Result<(), Failure> {
        let changes = loop {
            let failure = match self.take(on, confirm_seconds).await {
                Ok(changes) => break changes,
                Err(failure) => failure,
            };
            let may_ask = stdin().is_terminal() && stderr().is_terminal();
            if !may_ask || !matches!(failure, Failure::Refused(_)) || !wants_more(&failure) {
                return Err(self.kept(failure));
            }
            if let Err(failure) = self.ask() {
                return Err(self.kept(failure));
            }
        };
        apply::show(&changes, on.json, &apply::done(false, confirm_seconds))
    }

    async fn take(&self, on: &mut Context, confirm_seconds: u32) -> Result<v1::Changes, Failure> {
        // Nobody answered the daemon while the editor ran, so it may have hung up.
        on.client = connect(&on.run_dir).await?;
        self.make_alike().and_then(|()| self.exchange()).map_err(|e| self.unchanged(&e.to_string()))?;
        let taken = self.take_file(on, confirm_seconds).await;
        if taken.is_err() {
            self.exchange().map_err(|e| {
                let message =
                    format!("{}: the old text is in {}: {e}", self.file.display(), self.copy.display());
                Failure::Refused(message)
            })?;
        }
        taken
    }

    /// Has the daemon take the file while it holds the new text: so the daemon knows that this is its own file.
    async fn take_file(&self, on: &mut Context, confirm_seconds: u32) -> Result<v1::Changes, Failure> {
        if std::fs::read_to_string(&self.copy).ok().as_ref() != Some(&self.before) {
            return Err(self.unchanged("somebody else changed the file meanwhile"));
        }
        let texts = Texts::load(&self.file).map_err(|e| self.unchanged(&e.to_string()))?;
        apply::ask(on, texts, &self.file, (false, confirm_seconds)).await
    }

    /// Gives the copy the owner and the permissions of the file.
    fn make_alike(&self) -> io::Result<()> {
        // Editors put another file in the place of the copy, so it is opened by its name.
        let (like, edited) = (self.file.metadata()?, File::open(&self.copy)?);
        let is = edited.metadata()?;
        if (is.uid(), is.gid()) != (like.uid(), like.gid()) {
            fchown(&edited, Some(like.uid()), Some(like.gid()))?;
        }
        edited.set_permissions(like.permissions())?;
        edited.sync_all()
    }

    fn exchange(&self) -> io::Result<()> {
        Ok(renameat_with(CWD, &*self.copy, CWD, &self.file, RenameFlags::EXCHANGE)?)
    }

    /// Keeps the copy, and adds where it is.
    fn kept(self, failure: Failure) -> Failure {
        let Self { copy, .. } = self;
        let what = match copy.keep() {
            Ok(path) => format!("what you wrote is in {}", path.display()),
            Err(e) => format!("what you wrote is lost: {e}"),
        };
        match failure {
            Failure::NoDaemon(why) => Failure::NoDaemon(format!("{why}\n{what}")),
            other => Failure::Refused(format!("{other}\n{what}")),
        }
    }
}

fn wants_more(refused: &Failure) -> bool {
    eprint!("{refused}\nEdit it again? [Y/n] ");
    let mut answer = String::new();
    let _ = stdin().read_line(&mut answer);
    !answer.is_empty() && !answer.trim().starts_with(['n', 'N'])
}

pub fn nothing(file: &Path, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(&serde_json::json!([])),
        false => print(&format!("{}: you changed nothing\n", file.display())),
    }
}
