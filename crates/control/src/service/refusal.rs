//! Refusals: a code, a message for people, and details for programs (google.rpc, AIP-193).

use crate::error::Error;
use config::Problems;
use std::collections::HashMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Longest message of a refusal, and most bytes of the problems in its details. Both travel in headers, of which clients
/// by default take 8 KiB, and the details repeat the message, by four characters for three bytes.
const MAX_MESSAGE: usize = 2560;
const MAX_PROBLEMS: usize = 768;

/// The domain of the reasons, by which clients tell them from those of others.
const DOMAIN: &str = "viaduct";

impl From<Error> for Status {
    fn from(e: Error) -> Self {
        let text = shortened(&e.to_string());
        let (operation, e) = match e {
            Error::Operation { index, error } => (Some(index), *error),
            e => (None, e),
        };
        let mut details = ErrorDetails::new();
        let mut about = HashMap::new();
        let (code, reason) = match &e {
            Error::Invalid(problems) => {
                add_problems(&mut details, problems);
                (Code::InvalidArgument, "INVALID")
            }
            Error::NotFound(_) => (Code::NotFound, "NOT_FOUND"),
            Error::Denied(_) => (Code::PermissionDenied, "OWNER"),
            Error::Revision { expected, present } => {
                about.insert("expected".to_owned(), expected.to_string());
                about.insert("present".to_owned(), present.to_string());
                (Code::FailedPrecondition, "OTHER_REVISION")
            }
            Error::Conflict(_) | Error::Operation { .. } => (Code::FailedPrecondition, "CONFLICT"),
            Error::Port { name, .. } => {
                about.insert("interface".to_owned(), name.clone());
                (Code::FailedPrecondition, "PORT")
            }
            Error::Busy(_) => (Code::ResourceExhausted, "QUEUE"),
            Error::Executor(_) => (Code::FailedPrecondition, "EXECUTOR"),
            Error::Routes(_) => (Code::ResourceExhausted, "ROUTES"),
            Error::Store(_) => (Code::Internal, "STORE"),
        };
        about.extend(operation.map(of_operation));
        details.set_error_info(reason, DOMAIN, about);
        Self::with_error_details(code, text, details)
    }
}

/// Adds the problems that fit.
fn add_problems(details: &mut ErrorDetails, problems: &Problems) {
    let mut length = 0;
    for problem in problems.iter() {
        length += problem.at.len() + problem.message.len() + 8;
        if length > MAX_PROBLEMS {
            return;
        }
        details.add_bad_request_violation(problem.at.clone(), problem.message.clone());
    }
}

/// Says which operation of a request was refused, counted from 0.
fn of_operation(index: usize) -> (String, String) {
    ("operation".to_owned(), index.to_string())
}

/// Shortens a message to the lines that fit, and says how many did not. A single line that is too long is
/// cut.
fn shortened(text: &str) -> String {
    let mut length = 0;
    let fits = |line: &&str| {
        length += line.len() + 1;
        length <= MAX_MESSAGE
    };
    let lines: Vec<&str> = text.lines().take_while(fits).collect();
    match text.lines().count() - lines.len() {
        0 => text.to_owned(),
        _ if lines.is_empty() => text.chars().take(MAX_MESSAGE / 4).chain("...".chars()).collect(),
        more => format!("{}\n... and {more} more; `viaduct check FILE` lists all", lines.join("\n")),
    }
}

pub(super) fn invalid(text: impl AsRef<str>) -> Status {
    Status::invalid_argument(shortened(text.as_ref()))
}

/// Refuses an operation of a request that makes no sense by itself.
pub(super) fn invalid_at(index: usize) -> impl Fn(String) -> Status {
    move |text| {
        let details = ErrorDetails::with_error_info("INVALID", DOMAIN, HashMap::from([of_operation(index)]));
        Status::with_error_details(Code::InvalidArgument, shortened(&text), details)
    }
}

pub(super) fn missing(text: impl AsRef<str>) -> Status {
    Status::not_found(shortened(text.as_ref()))
}
