//! guest: export, import.

use super::{Context, value};
use crate::client::Failure;
use crate::output::{print, print_json};
use api::state_file;
use api::v1::{ExportGuestRequest, GuestState};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Write, stdin, stdout};
use std::path::Path;
use tokio_stream::StreamExt;

pub async fn export(on: &mut Context, name: String, when_stopped: bool) -> Result<(), Failure> {
    if stdout().is_terminal() {
        let text = format!("this is not for terminals: viaduct guest export {name} > FILE");
        return Err(Failure::Usage(text));
    }
    let mut parts = on.client.export_guest(ExportGuestRequest { name, when_stopped }).await?.into_inner();
    let mut out = stdout().lock();
    state_file::begin(&mut out)?;
    out.flush()?;
    while let Some(part) = parts.next().await {
        state_file::write(&mut out, &part?)?;
    }
    Ok(out.flush()?)
}

pub async fn import(on: &mut Context, name: String, file: &Path) -> Result<(), Failure> {
    let mut parts = parts(file).map_err(|e| Failure::Refused(format!("{}: {e}", file.display())))?;
    if let Some(first) = parts.first_mut() {
        first.guest = name;
    }
    let done = on.client.import_guest(tokio_stream::iter(parts)).await?.into_inner();
    if on.json {
        return print_json(&value(&done));
    }
    print(&format!("{} connections and {} MACs\n", done.connections, done.macs))?;
    if !done.addresses.is_empty() {
        print(&format!("keeps what it leased: {}\n", done.addresses.join(", ")))?;
    }
    done.left_out.iter().try_for_each(|left| print(&format!("left out: {} ({})\n", left.count, left.reason)))
}

fn parts(file: &Path) -> std::io::Result<Vec<GuestState>> {
    match file.to_str() {
        Some("-") => state_file::read(&mut stdin().lock()),
        _ => state_file::read(&mut BufReader::new(File::open(file)?)),
    }
}
