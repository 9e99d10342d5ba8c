//! Errors, with the codes that CNI gives them.

/// Why a plug-in can't do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is of a version that has no such command, or that nobody here knows.
    #[error("{0}")]
    Version(String),
    /// There is no such network namespace.
    #[error("no network namespace at {path}: {reason}")]
    Container {
        /// Where it should be.
        path: String,
        /// What is there instead.
        reason: String,
    },
    /// An environment variable is missing or wrong.
    #[error("{0}: {1}")]
    Environment(&'static str, String),
    /// Reading or writing failed.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// What was sent is not the JSON that it should be.
    #[error("{0}: {1}")]
    Decode(&'static str, serde_json::Error),
    /// The configuration asks for what can't be.
    #[error("{0}")]
    Config(String),
    /// The daemon does not answer.
    #[error("{0}")]
    NoDaemon(String),
    /// The daemon refuses it.
    #[error("viaductd refuses it: {0}")]
    Refused(String),
    /// The kernel refuses it.
    #[error("{0}: {1}")]
    Kernel(String, String),
    /// The attachment is not as it should be.
    #[error("{0}")]
    Broken(String),
    /// A plug-in that this one calls fails.
    #[error("{plugin}: {message}")]
    Delegate {
        /// Its name.
        plugin: String,
        /// Its code.
        code: u32,
        /// Its message.
        message: String,
    },
    /// Some of several things failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl Error {
    /// Its code (CNI 1.1.0, section 5: "Error"); from 100 on, our own.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Version(_) => 1,
            Self::Container { .. } => 3,
            Self::Environment(..) => 4,
            Self::Io(..) => 5,
            Self::Decode(..) => 6,
            Self::Config(_) => 7,
            Self::NoDaemon(_) => 11,
            Self::Refused(_) => 100,
            Self::Kernel(..) => 101,
            Self::Broken(_) => 102,
            Self::Delegate { code, .. } => *code,
            Self::Several(errors) => errors.first().map_or(100, Self::code),
        }
    }

    /// This error and one that came while its effects were undone.
    #[must_use]
    pub(crate) fn and(self, undone: Result<(), Self>) -> Self {
        match undone {
            Ok(()) => self,
            Err(other) => Self::Several(vec![self, other]),
        }
    }

    /// Success, or all that failed.
    pub(crate) fn all(errors: Vec<Self>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self::Several(errors)) }
    }
}

/// Says what failed.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|e| Error::Io(what(), e.into()))
    }
}
