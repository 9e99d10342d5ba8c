//! The log on stderr: text, text with priorities for journald, or JSON.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt as layer, registry};

/// The crates of this repository that log. Of other crates, `debug` and `trace` show nothing.
const OURS: [&str; 9] =
    ["control", "engine", "hca", "helper", "offload", "sandbox", "viaductd", "virtio", "wire"];

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people; for journald with their priorities (sd-daemon(3)).
    Text,
    /// A JSON object to a line.
    Json,
}

/// The log's level and format. As text: `debug` or `debug,json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: LevelFilter,
    pub format: Format,
}

pub fn levels() -> impl TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["error", "warn", "info", "debug", "trace", "off"])
        .try_map(|level| level.parse::<LevelFilter>())
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = if self.format == Format::Json { ",json" } else { "" };
        write!(f, "{}{format}", self.level)
    }
}

impl FromStr for Log {
    type Err = tracing_subscriber::filter::LevelParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (level, format) = match text.strip_suffix(",json") {
            Some(level) => (level, Format::Json),
            None => (text, Format::Text),
        };
        Ok(Self { level: level.parse()?, format })
    }
}

impl Log {
    pub fn start(self) {
        let lines = layer::layer().with_writer(std::io::stderr);
        let lines = match self.format {
            Format::Json => lines.json().flatten_event(true).boxed(),
            Format::Text if is_journal() => lines
                .with_ansi(false)
                .event_format(Prioritised(format().without_time().with_level(false)))
                .boxed(),
            Format::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        };
        registry().with(lines.with_filter(targets(self.level))).init();
    }
}

/// Selects our messages from a level on, and those of libraries from `info` on.
fn targets(level: LevelFilter) -> Targets {
    let ours = OURS.into_iter().map(|name| (name, level));
    Targets::new().with_default(level.min(LevelFilter::INFO)).with_targets(ours)
}

/// Is true if stderr goes to journald, which says so in the environment (systemd.exec(5), `JOURNAL_STREAM`).
fn is_journal() -> bool {
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    let stream = format!("{}:{}", stderr.dev(), stderr.ino());
    std::env::var("JOURNAL_STREAM").is_ok_and(|journal| journal == stream)
}

/// Writes the priority before each message, as in `<4>`.
struct Prioritised<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Returns the priority of a level (syslog(3)).
const fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_can_be_told_to_the_helper() {
        for format in [Format::Text, Format::Json] {
            let log = Log { level: LevelFilter::DEBUG, format };
            assert_eq!(log.to_string().parse::<Log>().unwrap(), log);
        }
        assert!("loud".parse::<Log>().is_err());
    }

    #[test]
    fn debug_is_ours_and_warnings_are_everybodys() {
        let debug = targets(LevelFilter::DEBUG);
        assert!(debug.would_enable("control::core", &Level::DEBUG));
        assert!(
            !debug.would_enable("h2::proto", &Level::DEBUG) && debug.would_enable("h2::proto", &Level::WARN)
        );
        let error = targets(LevelFilter::ERROR);
        assert!(!error.would_enable("control", &Level::WARN) && !error.would_enable("h2", &Level::WARN));
    }
}
