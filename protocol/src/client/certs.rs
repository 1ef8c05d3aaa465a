//! A cluster's own CA, and the certificates it makes: what `pando certs` and `pando dev` call.
//!
//! A CA is valid for ten years, a certificate for one unless told otherwise: short enough that a leaked key ends, long enough
//! that renewing is a yearly errand (`pando certs renew`). All begin a day in the past, so that a clock that is behind does no
//! harm.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

use super::identity::{self, CA_FILE, CERTIFICATE_FILE, Identity, IdentityError, KEY_FILE, PeerName, Role, any_node};
use crate::ids::NodeName;

/// The file of the CA's private key, beside its `ca.pem`. Whoever has it can become any node.
pub const CA_KEY_FILE: &str = "ca.key";
/// How long a CA is valid.
pub const CA_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long a certificate is valid, unless told otherwise.
pub const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A cluster's CA.
pub struct Authority {
    cluster: String,
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    validity: Duration,
}

/// What asking for a certificate did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issued {
    /// It was made, or made anew because the former one had expired or was incomplete.
    Made,
    /// A valid one of the same name, role and CA was there, and was left alone.
    AlreadyThere,
}

/// Why a CA or certificate was not made.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// The name does not fit into a certificate.
    #[error("{0:?} cannot stand in a certificate: use 1 to 63 of a-z, 0-9 and -, not beginning or ending with -")]
    BadName(String),
    /// One of the CA's two files is there and the other is not.
    #[error(
        "{} is there but {} is not: bring the missing file back, or remove the other one to begin with a new CA",
        .there.display(), .missing.display()
    )]
    HalfAnAuthority {
        /// The file that is there.
        there: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
    /// The folder holds no CA.
    #[error("there is no CA of pando in {}: name the folder that `pando certs --ca` made", .0.display())]
    NoAuthority(PathBuf),
    /// The CA is that of another cluster.
    #[error(
        "{} is the CA of cluster {found:?}, not of {asked:?}: name that cluster, or use another folder",
        .file.display()
    )]
    OtherCluster {
        /// The CA's file.
        file: PathBuf,
        /// The cluster in it.
        found: String,
        /// The cluster that was asked for.
        asked: String,
    },
    /// The CA's key is not the one in its certificate.
    #[error("the key in {} does not fit the CA in {}: bring the right pair back", .key.display(), .certificate.display())]
    AuthorityKeyDoesNotFit {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// A file of the CA holds something else than it should.
    #[error(
        "{} holds no {expected} in PEM, and this one has no other source: restore it from a copy; or remove {} and {} for a new CA, \
         which costs new certificates for every node and admin, and a restart of every node",
        .file.display(), .certificate.display(), .key.display()
    )]
    DamagedAuthority {
        /// The file.
        file: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// The CA's certificate file.
        certificate: PathBuf,
        /// The CA's key file.
        key: PathBuf,
    },
    /// The folder holds what another CA made.
    #[error(
        "{} holds a certificate of another CA: remove the folder if that cluster is gone, or choose another folder",
        .0.display()
    )]
    OtherAuthority(PathBuf),
    /// The folder holds a certificate for somebody else.
    #[error("{} holds the certificate of {found}, not of {asked}: choose another folder", .folder.display())]
    OtherHolder {
        /// The folder.
        folder: PathBuf,
        /// Whose certificate is there.
        found: PeerName,
        /// Whose was asked for.
        asked: PeerName,
    },
    /// A file that is there cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file cannot be written.
    #[error("{} cannot be written: check that this user may write there", .file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The certificate could not be made.
    #[error("a certificate could not be made")]
    Making(#[from] rcgen::Error),
}

impl Authority {
    /// The CA of `cluster` in a folder (`ca.pem`, `ca.key`), made there if neither file is.
    ///
    /// # Errors
    /// [`CertsError`]: a folder that holds another cluster's CA, or half of one, is left as it is.
    pub fn create_or_load(folder: &Path, cluster: &str) -> Result<Self, CertsError> {
        check_label(cluster)?;
        let (certificate, key) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
        match (certificate.exists(), key.exists()) {
            (true, true) => Self::load(&certificate, &key, cluster).map_err(|error| match error {
                CertsError::Identity(IdentityError::NotPem { file, expected }) => {
                    CertsError::DamagedAuthority { file, expected, certificate, key }
                }
                other => other,
            }),
            (false, false) => Self::create(folder, cluster),
            (true, false) => Err(CertsError::HalfAnAuthority { there: certificate, missing: key }),
            (false, true) => Err(CertsError::HalfAnAuthority { there: key, missing: certificate }),
        }
    }

    /// The CA in a folder, of whichever cluster it is.
    ///
    /// # Errors
    /// [`CertsError`]: there is none, or half of one.
    pub fn open(folder: &Path) -> Result<Self, CertsError> {
        let (certificate, key) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
        match (certificate.exists(), key.exists()) {
            (true, true) => {}
            (false, false) => return Err(CertsError::NoAuthority(folder.to_owned())),
            (true, false) => return Err(CertsError::HalfAnAuthority { there: certificate, missing: key }),
            (false, true) => return Err(CertsError::HalfAnAuthority { there: key, missing: certificate }),
        }
        let cluster = cluster_of(&identity::read_certificate(&certificate)?);
        Self::load(&certificate, &key, &cluster.ok_or_else(|| CertsError::NoAuthority(folder.to_owned()))?)
    }

    /// Another validity than [`CERTIFICATE_VALIDITY`] for what it makes from now on.
    pub fn with_validity(mut self, validity: Duration) -> Self {
        self.validity = validity;
        self
    }

    /// The cluster whose CA it is.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Makes a certificate for `name` in a folder: `ca.pem`, `cert.pem`, `key.pem` (readable by its owner only). May be
    /// repeated: a valid one is left alone, an expired or incomplete one is made anew.
    ///
    /// # Errors
    /// [`CertsError`]: what another CA or for another holder was made is refused and left alone.
    pub fn issue(&self, name: &NodeName, role: Role, folder: &Path) -> Result<Issued, CertsError> {
        check_label(name.as_str())?;
        let holder = PeerName { name: name.clone(), role, cluster: self.cluster.clone() };
        if self.is_there(&holder, folder)? {
            return Ok(Issued::AlreadyThere);
        }
        self.make(&holder, folder)?;
        Ok(Issued::Made)
    }

    /// Whose certificate lies in a folder, expired or not.
    ///
    /// # Errors
    /// [`CertsError`]: there is none, or this CA did not make it.
    pub fn holder(&self, folder: &Path) -> Result<PeerName, CertsError> {
        if identity::read_certificate(&folder.join(CA_FILE))? != self.certificate {
            return Err(CertsError::OtherAuthority(folder.to_owned()));
        }
        let file = folder.join(CERTIFICATE_FILE);
        let own = identity::read_certificate(&file)?;
        // Whoever may write there could else leave a certificate of his own making with a name that he would like to have.
        identity::verify(&self.certificate, &own, folder, identity::end_of(&own))?;
        let names = || IdentityError::Nameless { file, names: identity::dns_names(&own) };
        Ok(PeerName::from_certificates(std::slice::from_ref(&own)).map_err(|_| names())?)
    }

    /// Makes a new key and a new certificate, valid from now, for whoever holds the one in a folder. May be repeated, also
    /// after it was cut off half-way. The files keep their owners and permissions.
    ///
    /// The key is renewed too, so that one that leaked ends with its certificate.
    ///
    /// # Errors
    /// [`CertsError`], as for [`Self::holder`]; what is there is left alone then.
    pub fn renew(&self, folder: &Path) -> Result<PeerName, CertsError> {
        let holder = self.holder(folder)?;
        self.make(&holder, folder)?;
        Ok(holder)
    }

    fn make(&self, holder: &PeerName, folder: &Path) -> Result<(), CertsError> {
        let key = KeyPair::generate()?;
        let certificate = certificate_params(holder, self.validity)?.signed_by(&key, &self.issuer)?;
        create_folder(folder)?;
        write_aside(&folder.join(KEY_FILE), &key.serialize_pem(), 0o600)?;
        write_aside(&folder.join(CERTIFICATE_FILE), &certificate.pem(), 0o644)?;
        write_aside(&folder.join(CA_FILE), &self.pem, 0o644)
    }

    fn create(folder: &Path, cluster: &str) -> Result<Self, CertsError> {
        let key = KeyPair::generate()?;
        let params = authority_params(cluster)?;
        let certificate = params.self_signed(&key)?;
        create_folder(folder)?;
        // The key first: with it alone the next run says which file is missing, and nothing was signed yet.
        write_aside(&folder.join(CA_KEY_FILE), &key.serialize_pem(), 0o600)?;
        write_aside(&folder.join(CA_FILE), &certificate.pem(), 0o644)?;
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        let (cluster, validity) = (cluster.to_owned(), CERTIFICATE_VALIDITY);
        Ok(Self { cluster, certificate: der, pem, issuer: Issuer::new(params, key), validity })
    }

    fn load(file: &Path, key_file: &Path, cluster: &str) -> Result<Self, CertsError> {
        let certificate = identity::read_certificate(file)?;
        let not_pem = |file: &Path, expected| IdentityError::NotPem { file: file.to_owned(), expected };
        let text =
            |file: &Path, expected| String::from_utf8(identity::read(file)?).map_err(|_| not_pem(file, expected));
        let found = cluster_of(&certificate).unwrap_or_else(|| "(no CA of pando)".to_owned());
        if found != cluster {
            return Err(CertsError::OtherCluster { file: file.to_owned(), found, asked: cluster.to_owned() });
        }
        let key = KeyPair::from_pem(&text(key_file, "private key")?).map_err(|_| not_pem(key_file, "private key"))?;
        if !fits(&key, &certificate) {
            let (key, certificate) = (key_file.to_owned(), file.to_owned());
            return Err(CertsError::AuthorityKeyDoesNotFit { key, certificate });
        }
        // The subject follows from the cluster's name alone, so the issuer can be had without parsing the certificate.
        let issuer = Issuer::new(authority_params(cluster)?, key);
        let (cluster, validity) = (cluster.to_owned(), CERTIFICATE_VALIDITY);
        Ok(Self { cluster, certificate, pem: text(file, "certificate")?, issuer, validity })
    }

    fn is_there(&self, holder: &PeerName, folder: &Path) -> Result<bool, CertsError> {
        match identity::read_certificate(&folder.join(CA_FILE)) {
            Ok(authority) if authority != self.certificate => {
                return Err(CertsError::OtherAuthority(folder.to_owned()));
            }
            Ok(_) | Err(IdentityError::Missing(_) | IdentityError::NotPem { .. }) => {}
            Err(unreadable) => return Err(unreadable.into()),
        }
        if let Ok(own) = identity::read_certificate(&folder.join(CERTIFICATE_FILE))
            && let Ok(found) = PeerName::from_certificates(&[own])
            && found != *holder
        {
            return Err(CertsError::OtherHolder { folder: folder.to_owned(), found, asked: holder.clone() });
        }
        match Identity::load(folder) {
            Ok(identity) => Ok(*identity.authority() == self.certificate),
            Err(unreadable @ IdentityError::Unreadable { .. }) => Err(unreadable.into()),
            Err(_) => Ok(false),
        }
    }
}

fn authority_params(cluster: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(vec![authority_name(cluster)])?;
    params.distinguished_name = subject(&format!("pando CA of {cluster}"));
    // No CA below it: it signs holders, and a stolen certificate can sign nobody.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (SystemTime::now() - DAY).into();
    params.not_after = (SystemTime::now() + CA_VALIDITY).into();
    Ok(params)
}

fn certificate_params(holder: &PeerName, validity: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut names = vec![holder.dns_name()];
    match holder.role {
        Role::Node => names.push(any_node(&holder.cluster)),
        Role::Admin | Role::Viewer | Role::Producer => {}
    }
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = subject(&format!("{holder}"));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = (SystemTime::now() - DAY).into();
    params.not_after = (SystemTime::now() + validity).into();
    Ok(params)
}

fn subject(common_name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "pando");
    subject.push(DnType::CommonName, common_name);
    subject
}

fn authority_name(cluster: &str) -> String {
    format!("authority.{cluster}.pando")
}

fn cluster_of(authority: &CertificateDer<'_>) -> Option<String> {
    identity::dns_names(authority)
        .iter()
        .find_map(|name| name.strip_prefix("authority.")?.strip_suffix(".pando").map(str::to_owned))
}

fn fits(key: &KeyPair, certificate: &CertificateDer<'_>) -> bool {
    EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.subject_public_key_info().as_ref() == key.subject_public_key_info())
}

fn check_label(label: &str) -> Result<(), CertsError> {
    let fits_dns = ServerName::try_from(authority_name(label)).is_ok();
    if fits_dns && label.parse::<NodeName>().is_ok() { Ok(()) } else { Err(CertsError::BadName(label.to_owned())) }
}

fn create_folder(folder: &Path) -> Result<(), CertsError> {
    fs::create_dir_all(folder).map_err(|source| CertsError::Unwritable { file: folder.to_owned(), source })
}

/// Written beside its place, synced and renamed, so that a reader or a crash never meets half a file. `mode` is for a new file;
/// one that is there keeps its owner and permissions, so that whoever could read it before still can.
fn write_aside(file: &Path, text: &str, mode: u32) -> Result<(), CertsError> {
    let unwritable = |source| CertsError::Unwritable { file: file.to_owned(), source };
    let aside = file.with_extension("new");
    // Left behind by a crash, perhaps with another mode; it is nobody's file yet.
    match fs::remove_file(&aside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unwritable(e)),
        _ => {}
    }
    let former = fs::metadata(file).ok();
    let mode = former.as_ref().map_or(mode, |former| former.mode() & 0o777);
    let mut out = OpenOptions::new().write(true).create_new(true).mode(mode).open(&aside).map_err(unwritable)?;
    if let Some(former) = former {
        let made = out.metadata().map_err(unwritable)?;
        if (made.uid(), made.gid()) != (former.uid(), former.gid()) {
            fchown(&out, Some(former.uid()), Some(former.gid())).map_err(unwritable)?;
        }
    }
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(unwritable)?;
    fs::rename(&aside, file).map_err(unwritable)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(unwritable)
}

#[cfg(test)]
mod tests;
