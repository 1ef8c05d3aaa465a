//! `pando certs`: a cluster's own CA, and the certificates of its nodes and of whoever asks them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
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
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Certs {
    #[command(subcommand)]
    verb: Option<CertsVerb>,
    /// Folder of the CA; its key is worth the whole cluster
    #[arg(long, value_name = "DIR", required = true)]
    ca: Option<PathBuf>,
    /// Name of the cluster, which stands in every certificate
    #[arg(long, value_name = "NAME", default_value = "pando")]
    cluster: String,
    /// A node to make a certificate for; repeatable. Default folder: NAME beside the CA's
    #[arg(long = "node", value_name = "NAME[=DIR]", value_parser = holder)]
    nodes: Vec<Holder>,
    /// Make a certificate for an admin. Default folder: admin beside the CA's
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    admin: Option<Option<PathBuf>>,
    /// Somebody to make a certificate for that reads everything and changes nothing; repeatable
    #[arg(long = "viewer", value_name = "NAME[=DIR]", value_parser = holder)]
    viewers: Vec<Holder>,
    /// A program to make a certificate for that only sends messages and asks for replies; repeatable
    #[arg(long = "producer", value_name = "NAME[=DIR]", value_parser = holder)]
    producers: Vec<Holder>,
    #[command(flatten)]
    validity: Validity,
}

/// How long what is made is valid.
#[derive(Debug, Clone, Copy, Args)]
struct Validity {
    /// How many days a certificate that is made is valid
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

#[derive(Debug, Subcommand)]
enum CertsVerb {
    /// Makes new certificates and keys for those who hold one, by the same CA; running nodes take them over by themselves
    Renew {
        /// Folder of the CA
        #[arg(long, value_name = "DIR")]
        ca: PathBuf,
        /// Folders with a certificate of this CA; default: all that lie beside the CA's folder, or in it
        #[arg(value_name = "DIR")]
        folders: Vec<PathBuf>,
        #[command(flatten)]
        validity: Validity,
    },
}

/// Who gets a certificate, and the folder for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    name: NodeName,
    folder: Option<PathBuf>,
}

impl Certs {
    /// Makes what is missing, or renews what is there.
    ///
    /// # Errors
    /// A name does not fit, a folder holds something else, or a file cannot be written.
    pub fn run(mut self, target: &Target) -> Result<(), Failure> {
        match (self.verb.take(), self.ca.take()) {
            (Some(CertsVerb::Renew { ca, folders, validity }), _) => renew(&ca, folders, validity.duration()),
            (None, Some(ca)) => self.make(&ca, target),
            (None, None) => Err(Failure::usage(anyhow!("--ca DIR is missing: the folder of the CA"))),
        }
    }

    fn make(self, ca: &Path, target: &Target) -> Result<(), Failure> {
        if !target.endpoints.is_empty() && self.admin.is_none() {
            return Err(Failure::usage(anyhow!(
                "--endpoints writes a context, and a context needs an identity to show: add --admin"
            )));
        }
        let had_authority = ca.join("ca.pem").exists();
        let authority = Authority::create_or_load(ca, &self.cluster).map_err(failure)?;
        let authority = authority.with_validity(self.validity.duration());
        let done = if had_authority { Issued::AlreadyThere } else { Issued::Made };
        tell(&format!("CA of cluster {}", self.cluster), ca, done)?;
        let beside = ca.parent().map(Path::to_owned).unwrap_or_default();
        let named = [(Role::Node, &self.nodes), (Role::Viewer, &self.viewers), (Role::Producer, &self.producers)];
        for (role, holders) in named {
            for Holder { name, folder } in holders {
                let folder = folder.clone().unwrap_or_else(|| beside.join(name.as_str()));
                let done = authority.issue(name, role, &folder).map_err(failure)?;
                tell(&format!("{role} {name}"), &folder, done)?;
            }
        }
        let Some(folder) = self.admin else { return Ok(()) };
        let folder = folder.unwrap_or_else(|| beside.join(ADMIN));
        let done = authority.issue(&admin_name()?, Role::Admin, &folder).map_err(failure)?;
        tell("admin", &folder, done)?;
        if target.endpoints.is_empty() { Ok(()) } else { remember(target, &self.cluster, &folder) }
    }
}

impl Validity {
    fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.days) * 24 * 3600)
    }
}

/// Renews all or nothing as far as can be known before: every folder is looked at before the first one is written.
fn renew(ca: &Path, mut folders: Vec<PathBuf>, validity: Duration) -> Result<(), Failure> {
    let authority = Authority::open(ca).map_err(failure)?.with_validity(validity);
    if folders.is_empty() {
        folders = held_beside(ca, &authority)?;
    }
    for folder in &folders {
        authority.holder(folder).map_err(failure)?;
    }
    for folder in &folders {
        let holder = authority.renew(folder).map_err(failure)?;
        output::emit(&format!("{:<9}  {} {}: {}\n", "renewed", holder.role, holder.name, folder.display()))?;
    }
    Ok(())
}

/// The folders beside the CA's, and in it, that hold a certificate of this CA; in order of name. Others are nobody's business.
fn held_beside(ca: &Path, authority: &Authority) -> Result<Vec<PathBuf>, Failure> {
    let ca = std::path::absolute(ca).map_err(Failure::failed)?;
    let mut found = Vec::new();
    for around in ca.parent().into_iter().chain([ca.as_path()]) {
        let unreadable = |error| Failure::failed(error).context(format!("{} cannot be read", around.display()));
        for entry in std::fs::read_dir(around).map_err(unreadable)? {
            let folder = entry.map_err(unreadable)?.path();
            if folder != ca && authority.holder(&folder).is_ok() {
                found.push(folder);
            }
        }
    }
    if found.is_empty() {
        return Err(Failure::failed(anyhow!(
            "no folder beside {} holds a certificate that this CA made: name the folders to renew",
            ca.display()
        )));
    }
    found.sort();
    Ok(found)
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
        | CertsError::NoAuthority(_)
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

fn holder(text: &str) -> Result<Holder, String> {
    let (name, folder) = match text.split_once('=') {
        Some((_, "")) => return Err(format!("{text:?} names no folder after the =: leave the = out for the default")),
        Some((name, folder)) => (name, Some(folder.into())),
        None => (text, None),
    };
    let name = name.parse().map_err(|error: pando_protocol::ids::BadName| error.to_string())?;
    Ok(Holder { name, folder })
}

#[cfg(test)]
mod tests {
    use pando_protocol::client::certs::CERTIFICATE_VALIDITY;
    use pando_protocol::client::identity::Identity;

    use super::*;

    fn certs(folder: &Path) -> Certs {
        let nodes = vec![holder("n1").unwrap(), holder(&format!("n2={}", folder.join("elsewhere").display())).unwrap()];
        let (viewers, producers) = (vec![holder("eve").unwrap()], vec![holder("till").unwrap()]);
        let (ca, validity) = (Some(folder.join("ca")), Validity { days: 365 });
        Certs { verb: None, ca, cluster: "grove".into(), nodes, admin: Some(None), viewers, producers, validity }
    }

    #[test]
    fn certificates_are_made_beside_the_ca_unless_a_folder_is_named_and_kept_when_there() {
        let folder = tempfile::tempdir().unwrap();
        certs(folder.path()).run(&Target::default()).unwrap();
        let certificate = |name: &str| std::fs::read(folder.path().join(name).join("cert.pem")).unwrap();
        let names = ["n1", "elsewhere", "admin", "eve", "till"];
        let made = names.map(certificate);
        certs(folder.path()).run(&Target::default()).unwrap();
        assert_eq!(made, names.map(certificate));
        let role = |name: &str| Identity::load(&folder.path().join(name)).unwrap().role();
        assert_eq!(names.map(role), [Role::Node, Role::Node, Role::Admin, Role::Viewer, Role::Producer]);
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
    fn renewing_finds_what_lies_beside_the_ca_and_takes_the_folders_that_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (all, foreign) = (certs(folder.path()), tempfile::tempdir().unwrap());
        all.run(&Target::default()).unwrap();
        Certs { nodes: vec![holder("n9").unwrap()], ..certs(foreign.path()) }.run(&Target::default()).unwrap();
        std::fs::rename(foreign.path().join("n9"), folder.path().join("n9")).unwrap();
        let ca = folder.path().join("ca");
        let names = ["n1", "elsewhere", "admin", "eve", "till", "n9"];
        let certificates = || names.map(|name| std::fs::read(folder.path().join(name).join("cert.pem")).unwrap());
        let before = certificates();
        renew(&ca, vec![folder.path().join("n1")], CERTIFICATE_VALIDITY).unwrap();
        let one = certificates();
        assert_eq!([0, 1, 2, 3, 4, 5].map(|n| one[n] == before[n]), [false, true, true, true, true, true]);
        renew(&ca, Vec::new(), CERTIFICATE_VALIDITY).unwrap();
        let rest = certificates();
        assert_eq!([0, 1, 2, 3, 4, 5].map(|n| rest[n] == one[n]), [false, false, false, false, false, true]);
        let refused = renew(&ca, vec![folder.path().join("n1"), folder.path().join("n9")], CERTIFICATE_VALIDITY);
        assert_eq!((refused.unwrap_err().code, certificates() == rest), (Some(crate::exit::Code::Failed), true));
    }

    #[test]
    fn a_holder_is_a_name_with_or_without_a_folder() {
        assert_eq!(holder("n2=/keys/n2").unwrap().folder, Some("/keys/n2".into()));
        assert!(holder("n2=").is_err() && holder("N2").is_err());
    }
}
