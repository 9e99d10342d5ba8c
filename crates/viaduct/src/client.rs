//! The connection to the daemon, and its errors.

use api::v1::viaduct_client::ViaductClient;
use hyper_util::rt::TokioIo;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// The daemon's API.
pub type Client = ViaductClient<Channel>;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The daemon, or a check in this program, refuses the command.
    #[error("{0}")]
    Refused(String),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NoDaemon(String),
    /// `explain --exit-code`: a packet would be dropped. Everything has been printed already.
    #[error("dropped")]
    Dropped,
    /// `explain --exit-code`: a packet would wait for a neighbour. Everything has been printed already.
    #[error("held")]
    Held,
    /// Nobody reads our output any more.
    #[error("output closed")]
    Closed,
}

impl Failure {
    pub const fn status(&self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::NoDaemon(_) => 3,
            Self::Dropped => 4,
            Self::Held => 5,
        }
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        match status.code() {
            // A connection that breaks in a call has a source; answers of the daemon itself have none.
            _ if std::error::Error::source(&status).is_some() => {
                Self::NoDaemon(format!("the daemon went away: {}", status.message()))
            }
            tonic::Code::Unavailable => Self::NoDaemon(format!("the daemon went away: {}", status.message())),
            tonic::Code::Unimplemented => Self::Refused(
                "the daemon is older than this program; replace it by `systemctl reload viaductd`".to_owned(),
            ),
            _ => Self::Refused(status.message().to_owned()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        match e.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Refused(e.to_string()),
        }
    }
}

/// Largest answer, bytes: tables may hold a million entries.
const MAX_REPLY: usize = 1 << 30;

/// Connects to the daemon that runs in `run_dir`.
pub async fn connect(run_dir: &Path) -> Result<Client, Failure> {
    let (socket, readers) = (api::socket(run_dir), api::readers_socket(run_dir));
    let connected = match UnixStream::connect(&socket).await {
        // Users who may not change anything may still read.
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            UnixStream::connect(readers).await.map_err(|_| e)
        }
        other => other,
    };
    let stream = connected.map_err(|e| unreachable(&socket, &e))?;
    // The address is only a name here, since the connection exists already.
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("the connection is gone"));
        async move { stream }
    });
    let channel = Endpoint::from_static("http://viaduct").connect_with_connector(connector).await;
    let channel = channel.map_err(|e| Failure::NoDaemon(format!("{}: {e}", socket.display())))?;
    Ok(ViaductClient::new(channel).max_decoding_message_size(MAX_REPLY).max_encoding_message_size(MAX_REPLY))
}

/// Explains why the daemon can't be reached at its socket, and what would help.
fn unreachable(socket: &Path, e: &std::io::Error) -> Failure {
    let at = socket.display();
    if e.kind() != std::io::ErrorKind::PermissionDenied {
        return Failure::NoDaemon(format!(
            "no daemon at {at}: {e}; is viaductd running, with this --run-dir?"
        ));
    }
    let whose = std::fs::metadata(socket).map(|file| {
        let (user, group) = (file.uid(), file.gid());
        format!(" (owner {user}, group {group}, mode {:o})", file.mode() & 0o777)
    });
    Failure::Refused(format!(
        "you may not open {at}{}: use sudo, or have an administrator add you to the socket's group; \
         `[host] readers` is for those who only look",
        whose.unwrap_or_default()
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use api::v1::StatusRequest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers the beginning of a call, then dies.
    async fn die_in_a_call(listener: tokio::net::UnixListener, greeting: &[u8]) {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(greeting).await.unwrap();
        // The client's preface, its settings, and the beginning of its request.
        let mut asked = [0; 64];
        stream.read_exact(&mut asked).await.unwrap();
    }

    #[tokio::test]
    async fn a_daemon_that_dies_in_a_call_went_away() {
        // An empty frame of settings (RFC 9113 6.5).
        for greeting in [&b""[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]] {
            let run_dir = tempfile::tempdir().unwrap();
            let listener = tokio::net::UnixListener::bind(api::socket(run_dir.path())).unwrap();
            let dies = tokio::spawn(async move { die_in_a_call(listener, greeting).await });
            let mut client = connect(run_dir.path()).await.unwrap();
            let failure = Failure::from(client.status(StatusRequest {}).await.unwrap_err());
            assert!(matches!(failure, Failure::NoDaemon(_)), "{failure:?}");
            dies.await.unwrap();
        }
    }
}
