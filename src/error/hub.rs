//! Errors of the hub: a file that cannot be fetched.

use std::path::PathBuf;

/// Why a file of a repository could not be fetched, and from where it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{repo}/{file} at {endpoint}: {kind}")]
#[non_exhaustive]
pub struct HubError {
    /// The repository, `owner/name`.
    pub repo: String,
    /// The file in it; empty where the repository itself was asked for.
    pub file: String,
    /// The hub's address.
    pub endpoint: String,
    /// What went wrong.
    #[source]
    pub kind: HubErrorKind,
}

/// What went wrong between this machine and the hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubErrorKind {
    /// A name that cannot be part of an address or of a path in the cache. Nothing was sent.
    #[error("the {what} {found:?} cannot be used: expected {expected}")]
    Invalid {
        /// Which name.
        what: &'static str,
        /// The name.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// The hub has no such file (404).
    #[error("not found (404): check the spelling of repository, file and revision `{revision}`")]
    NotFound {
        /// The revision asked for.
        revision: String,
    },
    /// The hub wants to know who asks (401) or refuses this asker (403).
    #[error(
        "access refused ({status}): the repository is absent, private or gated; accept its terms on its page if it has any \
         and pass an access token to `Hub::token`"
    )]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// Any other HTTP status that is no success.
    #[error("the hub answered with HTTP status {status}; try again later or name another endpoint")]
    Status {
        /// The HTTP status.
        status: u16,
    },
    /// No connection, or one that broke.
    #[error(
        "cannot reach the hub ({reason}); connect to the network, or fetch the file by other means and open its path"
    )]
    Unreachable {
        /// What the client said.
        reason: String,
    },
    /// An answer that a hub does not give.
    #[error("the answer is not a hub's ({reason}); check the endpoint and any proxy in between")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// The repository cannot be used as a model directory.
    #[error("the repository is no model in the directory layout: {reason}")]
    NoModel {
        /// What is missing or damaged.
        reason: String,
    },
    /// The transfer ended early or brought too much; what arrived was removed.
    #[error("received {found} of {expected} bytes; what arrived was removed, so fetch again")]
    Incomplete {
        /// Bytes announced.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// Another process is fetching the same file.
    #[error("another process holds {} and is fetching this file; wait for it", lock.display())]
    Busy {
        /// The lock file.
        lock: PathBuf,
    },
    /// The cache on this machine cannot be read or written.
    #[error("cannot use the cache below {}: {error}", cache.display())]
    Io {
        /// The cache directory.
        cache: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
}
