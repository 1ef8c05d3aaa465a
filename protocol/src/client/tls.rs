//! TLS as Pando speaks it: 1.3 only, both sides with certificates of the cluster's CA, the protocol's version in ALPN.
//!
//! The cryptography is named here and never taken from a process-wide default, which another library could have set.

use std::io;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{AlertDescription, ClientConfig, RootCertStore, ServerConfig};

use super::identity::Identity;
use crate::message::{ALPN, versions_to_answer};

/// Everything that an identity's files are needed for, made once when it is loaded.
pub(super) struct Configurations {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    pub(super) quic_client: Arc<QuicClientConfig>,
    pub(super) quic_server: Arc<QuicServerConfig>,
}

/// TLS over TCP for whoever dials.
pub fn client(identity: &Identity) -> Arc<ClientConfig> {
    identity.configurations().client.clone()
}

/// TLS over TCP for whoever listens.
pub fn server(identity: &Identity) -> Arc<ServerConfig> {
    identity.configurations().server.clone()
}

/// Whether both sides agreed on this version of the protocol. TLS over TCP lets a peer pass that names none, and whoever accepts
/// QUIC agrees to others too: see [`versions_to_answer`].
pub fn is_our_protocol(agreed: Option<&[u8]>) -> bool {
    agreed == Some(ALPN)
}

/// Which versions of the protocol met where one connected and this process accepted, and what to do; for both sides.
pub fn versions_meet(theirs: &str) -> String {
    let ours = String::from_utf8_lossy(ALPN);
    format!(
        "two versions of the protocol meet: who connects speaks {theirs}, who accepts {ours}; run the same version of pando \
         on both, of a cluster on all nodes"
    )
}

/// That the other side speaks another version, where a handshake told no more, and what to do.
pub fn another_version() -> String {
    let ours = String::from_utf8_lossy(ALPN);
    format!("the other side speaks another version of the protocol than {ours}: run the same version of pando on both")
}

/// What a failed handshake over TCP means, in words where it is about versions.
pub fn in_words(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>());
    let about_versions =
        [rustls::Error::NoApplicationProtocol, rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)];
    if tls.is_some_and(|tls| about_versions.contains(tls)) {
        return io::Error::new(io::ErrorKind::PermissionDenied, another_version());
    }
    error
}

pub(super) fn configurations(
    authority: &CertificateDer<'static>,
    certificate: &CertificateDer<'static>,
    key: &PrivateKeyDer<'static>,
) -> Result<Configurations, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let roots = Arc::new(roots);
    let chain = vec![certificate.clone()];
    let client = client_config(provider.clone(), roots.clone(), chain.clone(), key.clone_key())?;
    let server = server_config(provider, roots, chain, key.clone_key())?;
    let mut quic_server = server.clone();
    quic_server.alpn_protocols = versions_to_answer();
    let unfit = |_| rustls::Error::General("no cipher suite for QUIC".into());
    Ok(Configurations {
        quic_client: Arc::new(QuicClientConfig::try_from(client.clone()).map_err(unfit)?),
        quic_server: Arc::new(QuicServerConfig::try_from(quic_server).map_err(unfit)?),
        client: Arc::new(client),
        server: Arc::new(server),
    })
}

fn client_config(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Each connection shows and checks certificates anew; early data could be replayed.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_config(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error: VerifierBuilderError| rustls::Error::General(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}
