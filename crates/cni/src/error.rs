//! Errors, with the codes that CNI gives them.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration's version does not have the command, or is unknown here.
    #[error("{0}")]
    Version(String),
    #[error("no network namespace at {path}: {reason}")]
    Container {
        path: String,
        /// Description of what is there instead.
        reason: String,
    },
    #[error("{0}: {1}")]
    Environment(&'static str, String),
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// The input is not JSON of the expected form.
    #[error("{0}: {1}")]
    Decode(&'static str, serde_json::Error),
    /// The configuration asks for something impossible.
    #[error("{0}")]
    Config(String),
    #[error("{0}")]
    NoDaemon(String),
    #[error("viaductd refuses it: {0}")]
    Refused(String),
    #[error("{0}: {1}")]
    Kernel(String, String),
    /// The attachment is not as it was made.
    #[error("{0}")]
    Broken(String),
    #[error("{plugin}: {message}")]
    Delegate { plugin: String, code: u32, message: String },
    /// Several errors of one call.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl Error {
    /// Returns the error's code (CNI 1.1.0, section 5: "Error"). Codes from 100 on are our own.
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

    /// Adds an error that came while the effects of this one were undone.
    #[must_use]
    pub(crate) fn and(self, undone: Result<(), Self>) -> Self {
        match undone {
            Ok(()) => self,
            Err(other) => Self::Several(vec![self, other]),
        }
    }

    /// Returns success, or all errors.
    pub(crate) fn all(errors: Vec<Self>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self::Several(errors)) }
    }
}

/// Adds words to an I/O error: what failed.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|e| Error::Io(what(), e.into()))
    }
}
