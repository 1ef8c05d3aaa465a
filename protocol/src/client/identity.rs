//! Who a process is, by its certificate: a name, a role, and the cluster whose CA signed it.
//!
//! ```text
//!   ca.pem cert.pem key.pem ──► IdentityFiles ──► Identity ──► TLS configurations      certificate of a peer ──► PeerName
//! ```
//!
//! A certificate names its holder as `<name>.<role>.<cluster>.pando`; the certificate of a node also carries
//! `node.<cluster>.pando`, which is what a client dials that knows no more than an address.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::hmac;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use super::tls::{self, Configurations};
use crate::ids::NodeName;
pub use crate::role::Role;

/// The file of the cluster's CA certificate in an identity's folder.
pub const CA_FILE: &str = "ca.pem";
/// The file of the holder's certificate.
pub const CERTIFICATE_FILE: &str = "cert.pem";
/// The file of the holder's private key.
pub const KEY_FILE: &str = "key.pem";

/// The holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName {
    /// Its name: that of a node, or of whoever administers.
    pub name: NodeName,
    /// What it may do.
    pub role: Role,
    /// The cluster it belongs to.
    pub cluster: String,
}

/// Why a peer's certificate gives no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamelessPeer {
    /// There is no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The certificate is none of ours.
    #[error("the peer's certificate names {0:?}, expected <name>.<role>.<cluster>.pando")]
    NoName(Vec<String>),
}

impl PeerName {
    /// The peer of a connection, from the certificate that was verified when it was made.
    ///
    /// # Errors
    /// [`NamelessPeer`] where the certificate carries no name that this version reads.
    pub fn of(connection: &quinn::Connection) -> Result<Self, NamelessPeer> {
        let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
        Self::from_certificates(shown.as_deref().map(Vec::as_slice).unwrap_or_default())
    }

    /// The holder of a chain of certificates, its own first.
    ///
    /// # Errors
    /// [`NamelessPeer`] where the first one carries no name that this version reads.
    pub fn from_certificates(chain: &[CertificateDer<'_>]) -> Result<Self, NamelessPeer> {
        let own = chain.first().ok_or(NamelessPeer::NoCertificate)?;
        let names = dns_names(own);
        names.iter().find_map(|name| Self::parse(name)).ok_or(NamelessPeer::NoName(names))
    }

    /// Its name in certificates.
    pub fn dns_name(&self) -> String {
        format!("{}.{}.{}.pando", self.name, self.role, self.cluster)
    }

    /// Its name, if it is a node.
    pub fn node(&self) -> Option<&NodeName> {
        (self.role == Role::Node).then_some(&self.name)
    }

    fn parse(dns_name: &str) -> Option<Self> {
        let mut labels = dns_name.split('.');
        let name = labels.next()?.parse().ok()?;
        let role = Role::from_word(labels.next()?)?;
        let cluster = labels.next()?.to_owned();
        let ends = labels.next() == Some("pando") && labels.next().is_none();
        ends.then_some(Self { name, role, cluster })
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of cluster {}", self.role, self.name, self.cluster)
    }
}

/// The name that every node of `cluster` carries beside its own: for dialling an address without knowing whose it is.
pub fn any_node(cluster: &str) -> String {
    format!("node.{cluster}.pando")
}

/// Who this process is. Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<Parts>);

struct Parts {
    own: PeerName,
    authority: CertificateDer<'static>,
    valid_until: SystemTime,
    configurations: Configurations,
    /// Makes further secrets out of the private key; see [`Identity::derive`].
    derivation: hmac::Key,
}

/// What lies in an identity's folder, unchecked: to see whether it has changed since. It holds the private key, so it has no
/// text.
#[derive(Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    folder: PathBuf,
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl IdentityFiles {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` from a folder.
    ///
    /// # Errors
    /// [`IdentityError::Missing`] and [`IdentityError::Unreadable`].
    pub fn read(folder: &Path) -> Result<Self, IdentityError> {
        Ok(Self {
            folder: folder.to_owned(),
            authority: read(&folder.join(CA_FILE))?,
            certificate: read(&folder.join(CERTIFICATE_FILE))?,
            key: read(&folder.join(KEY_FILE))?,
        })
    }
}

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file is not there.
    #[error("there is no {}: `pando certs` makes certificates; or name another folder of certificates", .0.display())]
    Missing(PathBuf),
    /// A file is there and cannot be read.
    #[error("{} cannot be read: check who owns it and that this user may read it", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{} holds no {expected} in PEM: make it again with `pando certs`", .file.display())]
    NotPem {
        /// The file.
        file: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// The certificate's time is over.
    #[error("the certificate in {} has expired: `pando certs renew` makes a new one", .0.display())]
    Expired(PathBuf),
    /// The certificate's time has not begun.
    #[error("the certificate in {} is not valid yet: check the clock of this machine", .0.display())]
    NotYetValid(PathBuf),
    /// Another CA made the certificate.
    #[error(
        "the certificate in {} was not made by the CA in {}: take all three files from one run of `pando certs`",
        .certificate.display(), .authority.display()
    )]
    OtherAuthority {
        /// The certificate's file.
        certificate: PathBuf,
        /// The CA's file.
        authority: PathBuf,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} does not fit the certificate in {}: take both from one run of `pando certs`",
        .key.display(), .certificate.display()
    )]
    KeyDoesNotFit {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The certificate is not one of Pando's.
    #[error(
        "the certificate in {} names {names:?}, expected <name>.<role>.<cluster>.pando with the role {}: make it with \
         `pando certs`",
        .file.display(), Role::ALL.map(Role::as_str).join(", ")
    )]
    Nameless {
        /// The certificate's file.
        file: PathBuf,
        /// The names in it.
        names: Vec<String>,
    },
    /// TLS cannot work with it.
    #[error("the certificates in {} cannot be used: {why}", .folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// Why.
        why: String,
    },
}

impl Identity {
    /// Reads `ca.pem`, `cert.pem` and `key.pem` from a folder and checks that they belong together and are valid now.
    ///
    /// # Errors
    /// [`IdentityError`], which names the file and what to do.
    pub fn load(folder: &Path) -> Result<Self, IdentityError> {
        Self::from_files(&IdentityFiles::read(folder)?)
    }

    /// The same from files that were read before.
    ///
    /// # Errors
    /// [`IdentityError`], which names the file and what to do.
    pub fn from_files(files: &IdentityFiles) -> Result<Self, IdentityError> {
        let folder = files.folder.as_path();
        let file = |name: &str| folder.join(name);
        let authority = certificate(&files.authority, &file(CA_FILE))?;
        let certificate = certificate(&files.certificate, &file(CERTIFICATE_FILE))?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|e| not_pem(&file(KEY_FILE), "private key", &e))?;
        verify(&authority, &certificate, folder, SystemTime::now())?;
        let valid_until = end_of(&certificate);
        let own = PeerName::from_certificates(std::slice::from_ref(&certificate))
            .map_err(|_| IdentityError::Nameless { file: file(CERTIFICATE_FILE), names: dns_names(&certificate) })?;
        let configurations = tls::configurations(&authority, &certificate, &key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                IdentityError::KeyDoesNotFit { key: file(KEY_FILE), certificate: file(CERTIFICATE_FILE) }
            }
            other => IdentityError::Unusable { folder: folder.to_owned(), why: other.to_string() },
        })?;
        let derivation = hmac::Key::new(hmac::HMAC_SHA256, key.secret_der());
        Ok(Self(Arc::new(Parts { own, authority, valid_until, configurations, derivation })))
    }

    /// Who this is.
    pub fn own(&self) -> &PeerName {
        &self.0.own
    }

    /// The name in the certificate.
    pub fn name(&self) -> &NodeName {
        &self.0.own.name
    }

    /// The role in the certificate.
    pub fn role(&self) -> Role {
        self.0.own.role
    }

    /// The cluster in the certificate.
    pub fn cluster(&self) -> &str {
        &self.0.own.cluster
    }

    /// When the certificate's time is over, by the wall clock.
    pub fn valid_until(&self) -> SystemTime {
        self.0.valid_until
    }

    /// Whether the same CA made both.
    pub fn has_the_authority_of(&self, other: &Self) -> bool {
        self.0.authority == other.0.authority
    }

    /// The name in the certificate of the node `name` of the same cluster: dialling by it verifies who answers.
    pub fn server_name(&self, name: &NodeName) -> String {
        PeerName { name: name.clone(), role: Role::Node, cluster: self.cluster().to_owned() }.dns_name()
    }

    /// The certificate of the CA that signed it.
    pub(super) fn authority(&self) -> &CertificateDer<'static> {
        &self.0.authority
    }

    /// A secret of its own for each `purpose`, the same in every process that has this private key.
    pub(super) fn derive(&self, purpose: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.0.derivation, purpose.as_bytes());
        tag.as_ref().try_into().expect("a tag of HMAC-SHA-256 has 32 bytes")
    }

    pub(super) fn configurations(&self) -> &Configurations {
        &self.0.configurations
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.0.own)
    }
}

/// The DNS names in a certificate; none where it is no certificate.
pub(super) fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    EndEntityCert::try_from(certificate)
        .map(|parsed| parsed.valid_dns_names().map(str::to_owned).collect())
        .unwrap_or_default()
}

pub(super) fn read_certificate(file: &Path) -> Result<CertificateDer<'static>, IdentityError> {
    certificate(&read(file)?, file)
}

fn certificate(pem: &[u8], file: &Path) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(pem).map_err(|e| not_pem(file, "certificate", &e))
}

pub(super) fn read(file: &Path) -> Result<Vec<u8>, IdentityError> {
    std::fs::read(file).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => IdentityError::Missing(file.to_owned()),
        _ => IdentityError::Unreadable { file: file.to_owned(), source },
    })
}

// The cause is left out: it may quote bytes of a key.
fn not_pem(file: &Path, expected: &'static str, _: &pem::Error) -> IdentityError {
    IdentityError::NotPem { file: file.to_owned(), expected }
}

/// When a certificate's time is over; the epoch where it is no certificate.
pub(super) fn end_of(certificate: &CertificateDer<'_>) -> SystemTime {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return UNIX_EPOCH };
    // webpki tells the end of a certificate only where it refuses it for that, and it looks at the time before anything else.
    let never = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let algorithms = webpki::ALL_VERIFICATION_ALGS;
    match parsed.verify_for_usage(algorithms, &[], &[], never, KeyUsage::client_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => UNIX_EPOCH + Duration::from_secs(not_after.as_secs()),
        Err(_) | Ok(_) => UNIX_EPOCH,
    }
}

/// Checks that an authority made a certificate, and that it is valid at `at`. The folder is where both lie, for the error.
pub(super) fn verify(
    authority: &CertificateDer<'_>,
    certificate: &CertificateDer<'_>,
    folder: &Path,
    at: SystemTime,
) -> Result<(), IdentityError> {
    let unusable = |file: &str, why: String| IdentityError::Unusable { folder: folder.join(file), why };
    let anchor = webpki::anchor_from_trusted_cert(authority).map_err(|e| unusable(CA_FILE, e.to_string()))?;
    let parsed = EndEntityCert::try_from(certificate).map_err(|e| unusable(CERTIFICATE_FILE, e.to_string()))?;
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let verified = parsed.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        std::slice::from_ref(&anchor),
        &[],
        UnixTime::since_unix_epoch(at),
        KeyUsage::client_auth(),
        None,
        None,
    );
    let file = folder.join(CERTIFICATE_FILE);
    verified.map(drop).map_err(|error| match error {
        webpki::Error::CertExpired { .. } => IdentityError::Expired(file),
        webpki::Error::CertNotValidYet { .. } => IdentityError::NotYetValid(file),
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            IdentityError::OtherAuthority { certificate: file, authority: folder.join(CA_FILE) }
        }
        other => unusable(CERTIFICATE_FILE, other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::certs::Authority;

    fn issued(name: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create_or_load(folder.path(), "grove").unwrap();
        let own = folder.path().join(name);
        authority.issue(&name.parse().unwrap(), Role::Node, &own).unwrap();
        (folder, own)
    }

    #[test]
    fn a_name_has_exactly_four_labels_and_a_known_role() {
        let name = PeerName::parse("n1.node.grove.pando").unwrap();
        assert_eq!((name.name.as_str(), name.role, name.cluster.as_str()), ("n1", Role::Node, "grove"));
        assert_eq!(name.dns_name(), "n1.node.grove.pando");
        for bad in ["node.grove.pando", "n1.root.grove.pando", "n1.node.grove.pando.x", "n1.node.grove.com", ""] {
            assert_eq!(PeerName::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_identity_knows_its_name_role_and_cluster() {
        let (_folder, own) = issued("n1");
        let identity = Identity::load(&own).unwrap();
        assert_eq!((identity.name().as_str(), identity.role(), identity.cluster()), ("n1", Role::Node, "grove"));
    }

    #[test]
    fn every_broken_file_is_named_with_what_is_wrong() {
        let (folder, own) = issued("n1");
        let other = folder.path().join("n2");
        Authority::create_or_load(folder.path(), "grove")
            .unwrap()
            .issue(&"n2".parse().unwrap(), Role::Node, &other)
            .unwrap();
        let key = std::fs::read(own.join(KEY_FILE)).unwrap();

        std::fs::copy(other.join(KEY_FILE), own.join(KEY_FILE)).unwrap();
        assert!(matches!(Identity::load(&own), Err(IdentityError::KeyDoesNotFit { .. })));
        std::fs::write(own.join(KEY_FILE), "no key").unwrap();
        assert!(matches!(Identity::load(&own), Err(IdentityError::NotPem { .. })));
        std::fs::remove_file(own.join(KEY_FILE)).unwrap();
        let missing = Identity::load(&own).unwrap_err().to_string();
        assert!(missing.contains("key.pem") && missing.contains("pando certs"), "{missing}");
        std::fs::create_dir(own.join(KEY_FILE)).unwrap();
        assert!(matches!(Identity::load(&own), Err(IdentityError::Unreadable { .. })));
        std::fs::remove_dir(own.join(KEY_FILE)).unwrap();
        std::fs::write(own.join(KEY_FILE), key).unwrap();
        assert!(Identity::load(&own).is_ok());
    }

    #[test]
    fn a_certificate_of_another_ca_does_not_fit() {
        let (_folder, own) = issued("n1");
        let (_other_folder, other) = issued("n1");
        std::fs::copy(other.join(CA_FILE), own.join(CA_FILE)).unwrap();
        assert!(matches!(Identity::load(&own), Err(IdentityError::OtherAuthority { .. })));
    }
}
