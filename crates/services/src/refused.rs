//! Why a question gets no answer.

/// The reason why a guest's question gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refused {
    /// No datagram with a right checksum, or not what the service understands.
    #[error("malformed")]
    Malformed,
    /// The message names a MAC that is not its sender's, or the sender is not the guest's own MAC.
    #[error("wrong_mac")]
    WrongMac,
    /// The guest has no address that could be leased: none in the subnet of a gateway.
    #[error("no_address")]
    NoAddress,
    /// The message is for another server, or came by a relay.
    #[error("not_ours")]
    NotOurs,
    /// The guest asks more of resolvers outside than it may.
    #[error("too_many")]
    TooMany,
    /// No resolver answered.
    #[error("no_resolver")]
    NoResolver,
    /// A DHCP server or a metadata service outside can't be reached, or says nothing.
    #[error("no_server")]
    NoServer,
    /// The answer could not be sent.
    #[error("lost")]
    Lost,
}
