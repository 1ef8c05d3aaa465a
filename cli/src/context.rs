//! Which cluster a command speaks to, and as whom: flags, then the environment, then the context file.
//!
//! ```text
//!   --endpoints, --identity        a flag
//!   --context NAME                 a flag that names a context of the file
//!   PANDO_ENDPOINTS, PANDO_IDENTITY
//!   PANDO_CONTEXT
//!   the file's current context     written by `pando dev` and `pando certs`
//! ```
//!
//! The first in this list that gives a value wins, for endpoints and identity each. The file is `context.json` in
//! `$PANDO_HOME`; by default in the `pando` folder of the user's configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;

/// The flags that say which cluster to speak to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Target {
    /// Nodes to ask: HOST:PORT, several with commas between them [env: PANDO_ENDPOINTS]
    #[arg(long, alias = "endpoint", global = true, value_name = "HOST:PORT,..", value_delimiter = ',', value_parser = parse_endpoint)]
    #[arg(help_heading = "Cluster")]
    pub endpoints: Vec<String>,
    /// Folder with the certificate and key to show [env: PANDO_IDENTITY]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Cluster")]
    pub identity: Option<PathBuf>,
    /// Named context of the context file [env: PANDO_CONTEXT]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
}

/// The environment variables that this program reads, taken once, so that nothing below asks the process for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `PANDO_ENDPOINTS`.
    pub endpoints: Option<OsString>,
    /// `PANDO_IDENTITY`.
    pub identity: Option<OsString>,
    /// `PANDO_CONTEXT`.
    pub context: Option<OsString>,
    /// `PANDO_HOME`.
    pub pando_home: Option<OsString>,
    /// `XDG_CONFIG_HOME`.
    pub config_home: Option<OsString>,
    /// `XDG_STATE_HOME`.
    pub state_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
}

impl Environment {
    /// Those of this process; an empty variable counts as unset.
    pub fn of_process() -> Self {
        let read = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            endpoints: read("PANDO_ENDPOINTS"),
            identity: read("PANDO_IDENTITY"),
            context: read("PANDO_CONTEXT"),
            pando_home: read("PANDO_HOME"),
            config_home: read("XDG_CONFIG_HOME"),
            state_home: read("XDG_STATE_HOME"),
            home: read("HOME"),
        }
    }

    /// The path of the context file.
    ///
    /// # Errors
    /// No variable says where it is.
    pub fn context_file(&self) -> Result<PathBuf, Failure> {
        let folder = match (&self.pando_home, &self.config_home) {
            (Some(pando), _) => PathBuf::from(pando),
            (None, Some(config)) => Path::new(config).join("pando"),
            (None, None) => self.home("the context file", "PANDO_HOME")?.join(".config/pando"),
        };
        Ok(folder.join("context.json"))
    }

    /// The folder in which `pando dev` keeps a cluster when it is not told where.
    ///
    /// # Errors
    /// No variable says where it is.
    pub fn dev_folder(&self) -> Result<PathBuf, Failure> {
        match &self.state_home {
            Some(state) => Ok(Path::new(state).join("pando/dev")),
            None => Ok(self.home("the data of `pando dev`", "--data")?.join(".local/state/pando/dev")),
        }
    }

    fn home(&self, what: &str, instead: &str) -> Result<&Path, Failure> {
        let home = self.home.as_ref().map(Path::new);
        home.ok_or_else(|| {
            Failure::usage(anyhow!("HOME is not set, so there is no place for {what}: set HOME or {instead}"))
        })
    }
}

/// A cluster to speak to, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Nodes to ask, `host:port`.
    pub endpoints: Vec<String>,
    /// The folder with the certificate and key to show.
    pub identity: PathBuf,
    /// The folder of the `pando dev` that runs it; `None` for other clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
}

/// The contexts that a user has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The one that is used when none is named.
    #[serde(default)]
    pub current: Option<String>,
    /// All of them by name.
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// Reads the file; one that is missing holds none.
    ///
    /// # Errors
    /// It cannot be read, or it is damaged.
    pub fn read(file: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => {
                let error =
                    anyhow::Error::new(error).context(format!("context file {} cannot be read", file.display()));
                return Err(Failure::usage(error));
            }
        };
        serde_json::from_str(&text).map_err(|error| {
            let file = file.display();
            Failure::usage(anyhow!(
                "context file {file} is damaged ({error}): mend it or remove it; `pando dev` and `pando certs` write it anew"
            ))
        })
    }

    /// Adds `context` under `name`, and makes it the current one; the file is replaced as a whole.
    ///
    /// # Errors
    /// The file is damaged, or cannot be written.
    pub fn remember(file: &Path, name: &str, context: Context) -> Result<(), Failure> {
        let mut contexts = Self::read(file)?;
        contexts.contexts.insert(name.into(), context);
        contexts.current = Some(name.into());
        let text = serde_json::to_string_pretty(&contexts).map_err(Failure::failed)? + "\n";
        replace_file(file, &text)
            .with_context(|| format!("context file {} cannot be written", file.display()))
            .map_err(Failure::failed)
    }

    fn named(&self, name: &str, file: &Path) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) };
            Failure::usage(anyhow!("there is no context {name:?} in {}: {known}", file.display()))
        })
    }
}

/// Writes a file aside and renames it over `file`, so that a reader sees the old text or the new one. Makes its folder.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn replace_file(file: &Path, text: &str) -> anyhow::Result<()> {
    let Some(folder) = file.parent() else { bail!("{} names no file", file.display()) };
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let aside = file.with_extension(format!("{}.new", std::process::id()));
    let written = fs::File::create(&aside)
        .and_then(|mut new| new.write_all(text.as_bytes()).and_then(|()| new.sync_all()))
        .and_then(|()| fs::rename(&aside, file));
    if let Err(error) = written {
        // The text aside is of no use to anybody, and the error that matters is the one at hand.
        let _ = fs::remove_file(&aside);
        return Err(anyhow::Error::new(error).context(format!("cannot replace {}", file.display())));
    }
    Ok(())
}

/// The cluster that the flags, the environment and the context file name together.
///
/// # Errors
/// They name none (exit code 3, with what to do), a context that does not exist, or the file is damaged.
pub fn resolve(flags: &Target, environment: &Environment) -> Result<Context, Failure> {
    let flag_context = flags.context.as_deref().map(|name| named_in_file(name, environment)).transpose()?;
    let from_flags = |value: fn(&Context) -> &[String]| flag_context.as_ref().map(|context| value(context).to_vec());
    let mut endpoints = Some(flags.endpoints.clone()).filter(|given| !given.is_empty());
    endpoints = endpoints.or_else(|| from_flags(|context| &context.endpoints));
    if endpoints.is_none() {
        endpoints = environment.endpoints.as_ref().map(parse_endpoints).transpose()?;
    }
    let mut identity = flags.identity.clone();
    identity = identity.or_else(|| flag_context.as_ref().map(|context| context.identity.clone()));
    identity = identity.or_else(|| environment.identity.as_ref().map(PathBuf::from));
    if let (Some(endpoints), Some(identity)) = (&endpoints, &identity) {
        return Ok(Context { endpoints: endpoints.clone(), identity: identity.clone(), data: None });
    }
    let rest = remembered(environment)?;
    let data = rest.as_ref().and_then(|context| context.data.clone());
    let endpoints = endpoints.or_else(|| rest.as_ref().map(|context| context.endpoints.clone()));
    let identity = identity.or_else(|| rest.map(|context| context.identity));
    match (endpoints, identity) {
        (Some(endpoints), Some(identity)) => Ok(Context { endpoints, identity, data }),
        (None, _) => Err(nothing_known(environment)),
        (Some(_), None) => Err(Failure::unreached(anyhow!(
            "no identity is known, and nodes speak only to those who show a certificate: name a folder with --identity DIR or \
             PANDO_IDENTITY; `pando certs` makes one"
        ))),
    }
}

/// The context that PANDO_CONTEXT names, or the current one of the file.
fn remembered(environment: &Environment) -> Result<Option<Context>, Failure> {
    if let Some(name) = &environment.context {
        return named_in_file(&name.to_string_lossy(), environment).map(Some);
    }
    let file = environment.context_file()?;
    let contexts = Contexts::read(&file)?;
    contexts.current.as_ref().map(|name| contexts.named(name, &file).cloned()).transpose()
}

fn named_in_file(name: &str, environment: &Environment) -> Result<Context, Failure> {
    let file = environment.context_file()?;
    Contexts::read(&file)?.named(name, &file).cloned()
}

fn nothing_known(environment: &Environment) -> Failure {
    let file = environment.context_file().map(|file| file.display().to_string()).unwrap_or_default();
    Failure::unreached(anyhow!(
        "no cluster is known: no --endpoints, no PANDO_ENDPOINTS, and no context in {file}; `pando dev` starts a cluster here, \
         --endpoints HOST:PORT --identity DIR names another"
    ))
}

fn parse_endpoints(text: &OsString) -> Result<Vec<String>, Failure> {
    let text = text.to_string_lossy();
    let parsed: Result<Vec<String>, String> = text.split(',').map(parse_endpoint).collect();
    parsed.map_err(|error| Failure::usage(anyhow!("PANDO_ENDPOINTS: {error}")))
}

/// Reads an address.
///
/// # Errors
/// It has no host, or no port.
pub fn parse_endpoint(text: &str) -> Result<String, String> {
    let text = text.trim();
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(text.into()),
        _ => Err(format!("{text:?} is not an endpoint: expected HOST:PORT, like 127.0.0.1:7600")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folder: &Path) -> Environment {
        Environment { pando_home: Some(folder.into()), ..Environment::default() }
    }

    fn context(port: u16, identity: &str) -> Context {
        Context { endpoints: vec![format!("127.0.0.1:{port}")], identity: identity.into(), data: None }
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = environment(folder.path());
        let file = environment.context_file().unwrap();
        Contexts::remember(&file, "other", context(1, "/other")).unwrap();
        Contexts::remember(&file, "dev", context(2, "/dev")).unwrap();
        assert_eq!(resolve(&Target::default(), &environment).unwrap(), context(2, "/dev"));

        environment.context = Some("other".into());
        assert_eq!(resolve(&Target::default(), &environment).unwrap(), context(1, "/other"));

        environment.endpoints = Some("127.0.0.1:3".into());
        assert_eq!(resolve(&Target::default(), &environment).unwrap(), context(3, "/other"));

        let named = Target { context: Some("dev".into()), ..Target::default() };
        assert_eq!(resolve(&named, &environment).unwrap(), context(2, "/dev"));

        let flags = Target { endpoints: vec!["127.0.0.1:4".into()], identity: Some("/flag".into()), context: None };
        assert_eq!(resolve(&flags, &environment).unwrap(), context(4, "/flag"));
    }

    #[test]
    fn without_any_the_error_says_how_to_get_one() {
        let folder = tempfile::tempdir().unwrap();
        let failure = resolve(&Target::default(), &environment(folder.path())).unwrap_err();
        assert_eq!(failure.code, Some(crate::exit::Code::Unreached));
        assert!(format!("{:#}", failure.error.unwrap()).contains("`pando dev` starts a cluster here"));
    }

    #[test]
    fn a_damaged_file_is_named_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let environment = environment(folder.path());
        let file = environment.context_file().unwrap();
        fs::write(&file, "{\"current\": ").unwrap();
        let failure = resolve(&Target::default(), &environment).unwrap_err();
        assert_eq!(failure.code, Some(crate::exit::Code::Usage));
        assert!(
            format!("{:#}", failure.error.unwrap()).contains(&format!("context file {} is damaged", file.display()))
        );
        assert!(Contexts::remember(&file, "dev", context(1, "/dev")).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "{\"current\": ");
    }

    #[test]
    fn the_file_stands_in_the_first_folder_that_is_named() {
        let mut environment = Environment { home: Some("/home/ada".into()), ..Environment::default() };
        assert_eq!(environment.context_file().unwrap(), Path::new("/home/ada/.config/pando/context.json"));
        environment.config_home = Some("/config".into());
        assert_eq!(environment.context_file().unwrap(), Path::new("/config/pando/context.json"));
        environment.pando_home = Some("/pando".into());
        assert_eq!(environment.context_file().unwrap(), Path::new("/pando/context.json"));
    }

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for bad in ["", "n1", ":7600", "n1:", "n1:0", "n1:70000"] {
            assert!(parse_endpoint(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse_endpoint(" [::1]:7600"), Ok("[::1]:7600".into()));
    }
}
