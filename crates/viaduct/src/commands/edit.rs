//! edit.

use super::{Context, apply};
use crate::client::Failure;
use crate::output::print;
use config::{Texts, folder_of};
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::{Builder, NamedTempFile, TempPath};

/// A copy of a host's file that somebody edits. It lies beside the file, so that the files which both include are the
/// same, and it can take the file's place at once.
pub struct Edited {
    file: PathBuf,
    /// The text of the file when it was copied.
    before: String,
    copy: NamedTempFile,
}

impl Edited {
    /// Copies a file, and has somebody edit the copy. `None`: the text is as it was.
    pub fn of(file: &Path) -> Result<Option<Self>, Failure> {
        let failed = |e: std::io::Error| Failure::Refused(format!("{}: {e}", file.display()));
        // The file to which a link leads changes, not the link.
        let target = file.canonicalize().map_err(failed)?;
        let before = std::fs::read_to_string(&target).map_err(failed)?;
        let copy = Builder::new().prefix(".host-").suffix(".toml").tempfile_in(folder_of(&target));
        let mut copy = copy.map_err(failed)?;
        copy.write_all(before.as_bytes()).map_err(failed)?;
        let edited = Self { file: target, before, copy };
        edited.ask()?;
        Ok((edited.text()? != edited.before).then_some(edited))
    }

    /// Runs the editor.
    fn ask(&self) -> Result<(), Failure> {
        let named =
            ["VISUAL", "EDITOR"].into_iter().filter_map(std::env::var_os).find(|name| !name.is_empty());
        let editor = named.unwrap_or_else(|| OsString::from("vi"));
        // The variables may hold arguments too.
        let mut line = editor.clone();
        line.push(" \"$1\"");
        let status = Command::new("sh").arg("-c").arg(line).arg("sh").arg(self.copy.path()).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.unchanged(&format!("the editor {} failed: {status}", editor.display()))),
            Err(e) => Err(self.unchanged(&format!("no shell to run the editor: {e}"))),
        }
    }

    fn unchanged(&self, why: &str) -> Failure {
        Failure::Refused(format!("{}: nothing was changed\n{why}", self.file.display()))
    }

    fn text(&self) -> Result<String, Failure> {
        std::fs::read_to_string(self.copy.path()).map_err(|e| self.unchanged(&e.to_string()))
    }

    /// Puts the edited file in force, and in the place of the one that it was copied of. If it is refused, whoever sits
    /// at the terminal may edit it again.
    pub async fn settle(self, on: &mut Context, confirm_seconds: u32) -> Result<(), Failure> {
        if let Err(refused) = self.take(on, confirm_seconds).await {
            let Failure::Refused(why) = refused else { return Err(refused) };
            return Err(Failure::Refused(format!("{why}\n{}", self.keep()?)));
        }
        let Self { file, copy, .. } = self;
        // Editors put another file in the place of the copy, so it is opened by its name.
        let put = |copy: TempPath| -> std::io::Result<()> {
            let (like, edited) = (file.metadata()?, File::open(&copy)?);
            edited.set_permissions(like.permissions())?;
            fchown(&edited, Some(like.uid()), Some(like.gid()))?;
            edited.sync_all()?;
            Ok(copy.persist(&file)?)
        };
        put(copy.into_temp_path()).map_err(|e| {
            let what = "the change is in force, but the file could not be replaced";
            Failure::Refused(format!("{}: {what}: {e}\n`viaduct diff` shows what differs", file.display()))
        })
    }

    async fn take(&self, on: &mut Context, confirm_seconds: u32) -> Result<(), Failure> {
        loop {
            if std::fs::read_to_string(&self.file).ok().as_ref() != Some(&self.before) {
                return Err(self.unchanged("somebody else changed the file meanwhile"));
            }
            let texts = Texts::load(self.copy.path()).map_err(|e| self.unchanged(&e.to_string()))?;
            let refused = match apply::take(on, texts, &self.file, false, confirm_seconds).await {
                Err(Failure::Refused(why)) => why,
                other => return other,
            };
            if !stdin().is_terminal() || !stderr().is_terminal() {
                return Err(Failure::Refused(refused));
            }
            eprint!("{refused}\nEdit it again? [Y/n] ");
            let mut answer = String::new();
            let _ = stdin().read_line(&mut answer);
            if answer.is_empty() || answer.trim().starts_with(['n', 'N']) {
                return Err(self.unchanged("you did not want to edit it again"));
            }
            self.ask()?;
        }
    }

    /// Keeps the copy, and says where it is.
    fn keep(self) -> Result<String, Failure> {
        let kept = self.copy.into_temp_path().keep();
        kept.map(|path| format!("what you wrote is in {}", path.display()))
            .map_err(|e| Failure::Refused(format!("what you wrote is lost: {e}")))
    }
}

pub fn nothing(file: &Path) -> Result<(), Failure> {
    print(&format!("{}: you changed nothing\n", file.display()))
}
