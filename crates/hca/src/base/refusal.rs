//! Answers to requests of applications: the new object, or a refusal.

use rustix::io::Errno;
use uverbs::{Given, Refusal, Reply};

/// A reply with the memory and sockets that go along, or a refusal.
pub(crate) type Answer = Result<(Reply, Vec<Given>), Refusal>;

pub(crate) fn refuse<T>(errno: Errno, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno: errno.raw_os_error(), message: message.into() })
}

/// Makes the refusal for a limit of the kernel or the guest that is reached.
pub(crate) fn no_memory(error: impl std::fmt::Display) -> Refusal {
    Refusal { errno: Errno::NOMEM.raw_os_error(), message: error.to_string() }
}

/// Answers a request that creates nothing.
pub(crate) const fn done() -> Answer {
    Ok((Reply::Done, Vec::new()))
}

/// Makes an answer with nothing along.
pub(crate) const fn reply(reply: Reply) -> Answer {
    Ok((reply, Vec::new()))
}

/// Returns the object that a request names by its handle, or refuses the request if there is none.
pub(crate) fn found<T>(what: Option<T>, name: &str) -> Result<T, Refusal> {
    what.map_or_else(|| refuse(Errno::INVAL, format!("there is no such {name}")), Ok)
}

/// Refuses more than the limit.
pub(crate) fn within(what: &str, asked: u32, limit: u32) -> Result<(), Refusal> {
    if asked <= limit {
        Ok(())
    } else {
        refuse(Errno::INVAL, format!("{what}: {asked} requested; at most {limit}"))
    }
}
