//! TLS as Pando speaks it: 1.3 only, both sides with certificates of the cluster's CA, the protocol's version in ALPN.
//!
//! The cryptography is named here and never taken from a process-wide default, which another library could have set.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::identity::Identity;
use crate::message::ALPN;

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

/// Whether both sides agreed on this version of the protocol. QUIC refuses others by itself; TLS over TCP lets a peer pass
/// that names none.
pub fn is_our_protocol(agreed: Option<&[u8]>) -> bool {
    agreed == Some(ALPN)
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
    let unfit = |_| rustls::Error::General("no cipher suite for QUIC".into());
    Ok(Configurations {
        quic_client: Arc::new(QuicClientConfig::try_from(client.clone()).map_err(unfit)?),
        quic_server: Arc::new(QuicServerConfig::try_from(server.clone()).map_err(unfit)?),
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
