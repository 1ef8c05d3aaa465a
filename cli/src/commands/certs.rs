//! `pando certs`: a cluster's own CA, and the certificates of its nodes and admins.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use pando_protocol::client::certs::{Authority, CertsError, Issued};
use pando_protocol::client::identity::Role;
use pando_protocol::ids::NodeName;

use crate::context::{Context, Contexts, Environment, Target};
use crate::exit::Failure;
use crate::output;

/// Makes a cluster's CA and certificates: what is missing is made, what is there is kept
///
/// With --endpoints (and --admin) it also writes a context, so that the next command needs no flags; it is named after the
/// cluster, or as --context says.
#[derive(Debug, Args)]
pub struct Certs {
    /// Folder of the CA; its key is worth the whole cluster
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Name of the cluster, which stands in every certificate
    #[arg(long, value_name = "NAME", default_value = "pando")]
    cluster: String,
    /// A node to make a certificate for; repeatable. Default folder: NAME beside the CA's
    #[arg(long = "node", value_name = "NAME[=DIR]", value_parser = node)]
    nodes: Vec<NodeIdentity>,
    /// Make a certificate for an admin. Default folder: admin beside the CA's
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    admin: Option<Option<PathBuf>>,
}

/// A node and the folder for its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeIdentity {
    name: NodeName,
    folder: Option<PathBuf>,
}

impl Certs {
    /// Makes what is missing.
    ///
    /// # Errors
    /// A name does not fit, a folder holds something else, or a file cannot be written.
    pub fn run(self, target: &Target) -> Result<(), Failure> {
        if !target.endpoints.is_empty() && self.admin.is_none() {
            return Err(Failure::usage(anyhow!(
                "--endpoints writes a context, and a context needs an identity to show: add --admin"
            )));
        }
        let had_authority = self.ca.join("ca.pem").exists();
        let authority = Authority::create_or_load(&self.ca, &self.cluster).map_err(failure)?;
        let done = if had_authority { Issued::AlreadyThere } else { Issued::Made };
        tell(&format!("CA of cluster {}", self.cluster), &self.ca, done)?;
        let beside = self.ca.parent().map(Path::to_owned).unwrap_or_default();
        for NodeIdentity { name, folder } in &self.nodes {
            let folder = folder.clone().unwrap_or_else(|| beside.join(name.as_str()));
            let done = authority.issue(name, Role::Node, &folder).map_err(failure)?;
            tell(&format!("node {name}"), &folder, done)?;
        }
        let Some(folder) = self.admin else { return Ok(()) };
        let folder = folder.unwrap_or_else(|| beside.join(ADMIN));
        let done = authority.issue(&admin_name()?, Role::Admin, &folder).map_err(failure)?;
        tell("admin", &folder, done)?;
        if target.endpoints.is_empty() { Ok(()) } else { remember(target, &self.cluster, &folder) }
    }
}

/// The name in the certificates of admins.
const ADMIN: &str = "admin";

/// [`ADMIN`] as a name.
///
/// # Errors
/// None; the type of the name cannot know.
pub fn admin_name() -> Result<NodeName, Failure> {
    ADMIN.parse().map_err(Failure::failed)
}

/// What a certificate that cannot be made means for the command.
pub fn failure(error: CertsError) -> Failure {
    match error {
        CertsError::BadName(_) | CertsError::OtherCluster { .. } => Failure::usage(error),
        CertsError::HalfAnAuthority { .. }
        | CertsError::AuthorityKeyDoesNotFit { .. }
        | CertsError::DamagedAuthority { .. }
        | CertsError::OtherAuthority(_)
        | CertsError::OtherHolder { .. }
        | CertsError::Identity(_)
        | CertsError::Unwritable { .. }
        | CertsError::Making(_) => Failure::failed(error),
    }
}

fn tell(what: &str, folder: &Path, done: Issued) -> Result<(), Failure> {
    let did = match done {
        Issued::Made => "made",
        Issued::AlreadyThere => "was there",
    };
    output::emit(&format!("{did:<9}  {what}: {}\n", folder.display()))
}

fn remember(target: &Target, cluster: &str, identity: &Path) -> Result<(), Failure> {
    let file = Environment::of_process().context_file()?;
    let name = target.context.as_deref().unwrap_or(cluster);
    let identity = std::path::absolute(identity).map_err(Failure::failed)?;
    Contexts::remember(&file, name, Context { endpoints: target.endpoints.clone(), identity, data: None })?;
    output::emit(&format!("{:<9}  context {name}: {}\n", "written", file.display()))
}

fn node(text: &str) -> Result<NodeIdentity, String> {
    let (name, folder) = match text.split_once('=') {
        Some((_, "")) => return Err(format!("{text:?} names no folder after the =: leave the = out for the default")),
        Some((name, folder)) => (name, Some(folder.into())),
        None => (text, None),
    };
    let name = name.parse().map_err(|error: pando_protocol::ids::BadName| error.to_string())?;
    Ok(NodeIdentity { name, folder })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certs(folder: &Path) -> Certs {
        let nodes = vec![node("n1").unwrap(), node(&format!("n2={}", folder.join("elsewhere").display())).unwrap()];
        Certs { ca: folder.join("ca"), cluster: "grove".into(), nodes, admin: Some(None) }
    }

    #[test]
    fn certificates_are_made_beside_the_ca_unless_a_folder_is_named_and_kept_when_there() {
        let folder = tempfile::tempdir().unwrap();
        certs(folder.path()).run(&Target::default()).unwrap();
        let certificate = |name: &str| std::fs::read(folder.path().join(name).join("cert.pem")).unwrap();
        let made: Vec<Vec<u8>> = ["n1", "elsewhere", "admin"].map(certificate).into();
        certs(folder.path()).run(&Target::default()).unwrap();
        assert_eq!(made, ["n1", "elsewhere", "admin"].map(certificate));
    }

    #[test]
    fn a_context_without_an_identity_is_refused_before_anything_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let target = Target { endpoints: vec!["127.0.0.1:7600".into()], ..Target::default() };
        let failure = Certs { admin: None, ..certs(folder.path()) }.run(&target).unwrap_err();
        assert_eq!(failure.code, Some(crate::exit::Code::Usage));
        assert!(!folder.path().join("ca").exists());
    }

    #[test]
    fn a_node_is_a_name_with_or_without_a_folder() {
        assert_eq!(node("n2=/keys/n2").unwrap().folder, Some("/keys/n2".into()));
        assert!(node("n2=").is_err() && node("N2").is_err());
    }
}
