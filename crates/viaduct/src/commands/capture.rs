//! capture.

use super::{Context, value};
use crate::client::Failure;
use crate::output::print;
use crate::pcapng::{Packet, Writer};
use api::v1::{CaptureRequest, CapturedPacket};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt;

/// How long written packets may stay in our buffer.
const FLUSH: Duration = Duration::from_millis(100);

pub async fn capture(
    on: &mut Context,
    request: CaptureRequest,
    write: Option<PathBuf>,
    count: Option<u64>,
) -> Result<(), Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut packets = on.client.capture(request).await?.into_inner();
    // The daemon captures from here on, so whoever waits for the file to appear misses nothing.
    let mut sink = match &write {
        Some(path) => Sink::to(path)?,
        None if on.json => Sink::Json,
        None => Sink::Text,
    };
    sink.flush()?;
    let mut ticks = tokio::time::interval(FLUSH);
    let mut taken = 0;
    while count.is_none_or(|count| taken < count) {
        tokio::select! {
            packet = packets.next() => match packet {
                Some(packet) => {
                    sink.take(&packet?)?;
                    taken += 1;
                }
                None => break,
            },
            _ = ticks.tick() => sink.flush()?,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    sink.flush()
}

fn open(path: &Path) -> Result<BufWriter<Box<dyn Write>>, Failure> {
    if path == Path::new("-") {
        return Ok(BufWriter::new(Box::new(std::io::stdout())));
    }
    let file = File::create(path).map_err(|e| Failure::Refused(format!("{}: {e}", path.display())))?;
    Ok(BufWriter::new(Box::new(file)))
}

/// Adds the file's name to an error, unless the reader of standard output has left.
fn cannot_write(path: &Path, e: std::io::Error) -> Failure {
    match Failure::from(e) {
        Failure::Refused(why) => Failure::Refused(format!("{}: {why}", path.display())),
        other => other,
    }
}

enum Sink {
    File(Writer<BufWriter<Box<dyn Write>>>, PathBuf),
    /// A JSON object per line.
    Json,
    Text,
}

impl Sink {
    fn to(path: &Path) -> Result<Self, Failure> {
        let writer = Writer::new(open(path)?).map_err(|e| cannot_write(path, e))?;
        Ok(Self::File(writer, path.to_owned()))
    }

    fn take(&mut self, packet: &CapturedPacket) -> Result<(), Failure> {
        match self {
            Self::File(writer, path) => {
                let written = writer.write(&Packet {
                    interface: &packet.interface,
                    time_ns: packet.time_ns,
                    outbound: packet.outbound,
                    comment: packet.dropped.as_deref(),
                    length: packet.length,
                    data: &packet.data,
                });
                written.map_err(|e| cannot_write(path, e))
            }
            Self::Json => print(&format!("{}\n", value(packet))),
            Self::Text => {
                let direction = if packet.outbound { ">" } else { "<" };
                let dropped = packet.dropped.as_ref().map(|r| format!(" dropped {r}:")).unwrap_or_default();
                let time = time_of_day(packet.time_ns);
                print(&format!("{time} {direction} {}{dropped} {}\n", packet.interface, packet.text))
            }
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::File(writer, path) => writer.flush().map_err(|e| cannot_write(path, e)),
            Self::Json | Self::Text => Ok(()),
        }
    }
}

/// Formats a time as UTC hours, minutes, seconds and microseconds.
pub fn time_of_day(time_ns: u64) -> String {
    let (seconds, micros) = (time_ns / 1_000_000_000, time_ns / 1000 % 1_000_000);
    format!("{:02}:{:02}:{:02}.{micros:06}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Formats seconds since the Unix epoch as UTC date and time.
pub fn date(seconds: u64) -> String {
    // Counts days in years that begin in March, so that February's 29th is the last day of a year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400 + month / 10, (month + 2) % 12 + 1);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_the_name_of_the_file() {
        let said =
            Sink::to(Path::new("/dev/full")).and_then(|mut sink| sink.flush()).unwrap_err().to_string();
        assert!(said.starts_with("/dev/full: "), "{said}");
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time_of_day(1_700_000_000_123_456_789), "22:13:20.123456");
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400 + 86_399), "2000-02-29 23:59:59 UTC");
        assert_eq!(date(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59:59 UTC");
    }
}
