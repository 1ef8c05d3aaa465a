//! Which certificate this node shows: the one it started with, then each that was put in its place while it ran.
//!
//! ```text
//!   folder ──read every 2 s──► [Renewal] ──whole, of the same node and CA──► Credentials   what is dialled with, QUIC and TCP
//!                                  │                                └──────► endpoint      what QUIC answers with
//!                                  └──anything else──► a warning; the former one goes on
//! ```
//!
//! Contents are compared, not times: a mounted secret is swapped as a whole, with whatever times it has. Connections that are
//! open stay open. The guard reads the folder itself when it has something to report, and QUIC's reset keys stay those with
//! which the process began, since its connections carry what was made of them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pando_protocol::client::identity::{Identity, IdentityError, IdentityFiles, PeerName};
use pando_protocol::client::quic::{self, Tuning};
use quinn::Endpoint;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// Who this node is on the network, as of now. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Credentials(watch::Receiver<Identity>);

/// Takes renewed certificates over.
pub struct Renewal {
    folder: PathBuf,
    endpoint: Endpoint,
    tuning: Tuning,
    shown: watch::Sender<Identity>,
    /// What is shown was made of these.
    taken: IdentityFiles,
    /// What is wrong with the files, and how many times in a row that was seen.
    trouble: Option<(String, u32)>,
    warned_of_end: Option<Instant>,
}

/// What a look at the folder showed.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// What is shown already.
    Same,
    /// Other files, which are shown from now on.
    Renewed,
    /// Files that cannot be shown.
    Trouble {
        why: String,
        /// Whether it is to be told now: seen twice, since files that are just being replaced do not fit for a moment.
        is_news: bool,
    },
}

/// Why files cannot take the place of those before.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("they are for {found}, this is {own}: put back what `pando certs renew` makes for this node")]
    OtherHolder { found: PeerName, own: PeerName },
    #[error(
        "another CA made them, whose certificates the other nodes do not accept: put back those of the former CA; to change the \
         CA stop all nodes, replace the files of all, start them"
    )]
    OtherAuthority,
}

impl Credentials {
    /// Shows `identity`, which was made of `files` in `folder`, until [`Renewal::run`] finds others there. `endpoint` is the one
    /// that accepts.
    pub fn renewable(
        folder: PathBuf,
        (files, identity): (IdentityFiles, Identity),
        endpoint: Endpoint,
        tuning: Tuning,
    ) -> (Self, Renewal) {
        let (shown, credentials) = watch::channel(identity);
        let (trouble, warned_of_end) = (None, None);
        let renewal = Renewal { folder, endpoint, tuning, shown, taken: files, trouble, warned_of_end };
        (Self(credentials), renewal)
    }

    /// Those that never change.
    #[cfg(test)]
    pub(crate) fn fixed(identity: Identity) -> Self {
        Self(watch::channel(identity).1)
    }

    /// The identity for a handshake that begins now.
    pub fn now(&self) -> Identity {
        self.0.borrow().clone()
    }
}

impl Renewal {
    /// Looks until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.warn_of_end();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(BETWEEN_LOOKS) => {}
            }
            let folder = self.folder.clone();
            // It fails only where the runtime is going down.
            let Ok(read) = tokio::task::spawn_blocking(move || IdentityFiles::read(&folder)).await else { return };
            let seen = self.look(read);
            let folder = self.folder.display();
            match seen {
                Seen::Same => {}
                Seen::Renewed => {
                    let days = self.days_left();
                    info!(%folder, days, "the certificate of this node was renewed, and is shown from now on");
                }
                Seen::Trouble { why, is_news: true } => warn!(
                    %folder, why,
                    "new certificate files cannot be used: the former ones are shown until these are mended; a restart of this \
                     node would fail"
                ),
                Seen::Trouble { why, is_news: false } => debug!(%folder, why, "certificate files do not fit"),
            }
        }
    }

    fn look(&mut self, read: Result<IdentityFiles, IdentityError>) -> Seen {
        if read.as_ref().is_ok_and(|files| *files == self.taken) {
            self.trouble = None;
            return Seen::Same;
        }
        match read.map_err(Unfit::from).and_then(|files| Ok((self.fitting(&files)?, files))) {
            Ok((identity, files)) => {
                // Before anybody dials with it, so that no peer meets the old one where it heard of the new.
                quic::accept_as(&self.endpoint, &identity, &self.tuning);
                self.shown.send_replace(identity);
                self.taken = files;
                (self.trouble, self.warned_of_end) = (None, None);
                Seen::Renewed
            }
            Err(unfit) => {
                let why = unfit.to_string();
                let times = match &self.trouble {
                    Some((former, times)) if *former == why => times.saturating_add(1),
                    _ => 1,
                };
                self.trouble = Some((why.clone(), times));
                Seen::Trouble { why, is_news: times == 2 }
            }
        }
    }

    fn fitting(&self, files: &IdentityFiles) -> Result<Identity, Unfit> {
        let (identity, shown) = (Identity::from_files(files)?, self.shown.borrow());
        if identity.own() != shown.own() {
            return Err(Unfit::OtherHolder { found: identity.own().clone(), own: shown.own().clone() });
        }
        if !identity.has_the_authority_of(&shown) {
            return Err(Unfit::OtherAuthority);
        }
        Ok(identity)
    }

    fn warn_of_end(&mut self) {
        if self.warned_of_end.is_some_and(|warned| warned.elapsed() < DAY) {
            return;
        }
        let folder = self.folder.display();
        match self.left() {
            None => error!(
                %folder,
                "the certificate of this node has expired: nobody accepts a new connection with it; `pando certs renew` makes a \
                 new one, which is taken over without a restart"
            ),
            Some(left) if left < WARNED_BEFORE => {
                let days = left.as_secs() / DAY.as_secs();
                warn!(
                    %folder, days,
                    "the certificate of this node expires soon: `pando certs renew` makes a new one, which is taken over without \
                     a restart"
                );
            }
            Some(_) => return,
        }
        self.warned_of_end = Some(Instant::now());
    }

    /// The time that the certificate has left; `None` where it is over.
    fn left(&self) -> Option<Duration> {
        self.shown.borrow().valid_until().duration_since(SystemTime::now()).ok()
    }

    fn days_left(&self) -> u64 {
        self.left().unwrap_or_default().as_secs() / DAY.as_secs()
    }
}

/// Three small files are read each time: often enough that whoever renews sees it happen, at no cost worth a thought.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// From so long before the end on it is warned of, once a day.
const WARNED_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use pando_protocol::client::certs::Authority;
    use pando_protocol::client::identity::{CERTIFICATE_FILE, KEY_FILE, Role};
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::transport::fixture::{Cluster, LIMIT};

    const LAN: fn() -> Tuning = Tuning::lan;

    fn read(folder: &Path) -> Result<IdentityFiles, IdentityError> {
        IdentityFiles::read(folder)
    }

    /// The node `n1` as it was made, with its folder.
    fn n1(cluster: &Cluster) -> (PathBuf, Credentials, Renewal) {
        let folder = cluster.folder("n1", Role::Node);
        let files = read(&folder).unwrap();
        let identity = Identity::from_files(&files).unwrap();
        let endpoint = quic::bind(&identity, "127.0.0.1:0".parse().unwrap(), &LAN()).unwrap().endpoint;
        let (credentials, renewal) = Credentials::renewable(folder.clone(), (files, identity), endpoint, Tuning::lan());
        (folder, credentials, renewal)
    }

    /// The certificate that an endpoint shows to whoever dials it.
    async fn shown_by(renewal: &Renewal, cluster: &Cluster) -> Vec<u8> {
        let near = cluster.dialler("n2");
        let address = renewal.endpoint.local_addr().unwrap().to_string();
        let accepting = renewal.endpoint.clone();
        let accepted = tokio::spawn(async move { accepting.accept().await.unwrap().await });
        let name = near.identity.server_name(&"n1".parse().unwrap());
        let connection = quic::dial(&near.endpoint, &address, &name, LIMIT).await.unwrap();
        accepted.await.unwrap().unwrap();
        let chain = connection.peer_identity().unwrap().downcast::<Vec<CertificateDer<'static>>>().unwrap();
        chain[0].to_vec()
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_shown_in_both_directions_without_a_restart() {
        let cluster = Cluster::new("grove");
        let (folder, credentials, mut renewal) = n1(&cluster);
        let before = (shown_by(&renewal, &cluster).await, credentials.now().valid_until());
        assert_eq!(renewal.look(read(&folder)), Seen::Same);
        cluster.authority().with_validity(700 * DAY).renew(&folder).unwrap();
        assert_eq!(renewal.look(read(&folder)), Seen::Renewed);
        assert_ne!(shown_by(&renewal, &cluster).await, before.0);
        assert!(credentials.now().valid_until() > before.1 + 300 * DAY);
        assert_eq!(renewal.look(read(&folder)), Seen::Same);
    }

    #[tokio::test]
    async fn broken_files_are_told_of_once_and_the_former_certificate_goes_on() {
        let cluster = Cluster::new("grove");
        let (folder, credentials, mut renewal) = n1(&cluster);
        let (before, key) = (shown_by(&renewal, &cluster).await, fs::read(folder.join(KEY_FILE)).unwrap());
        let certificate = fs::read(folder.join(CERTIFICATE_FILE)).unwrap();
        let other_key = fs::read(cluster.folder("n3", Role::Node).join(KEY_FILE)).unwrap();
        let news = |seen: Seen| match seen {
            Seen::Trouble { why, is_news } => (why, is_news),
            other => panic!("{other:?}"),
        };
        for (file, broken, because) in [
            (KEY_FILE, &other_key[..], "does not fit the certificate"),
            (CERTIFICATE_FILE, &certificate[..certificate.len() / 2], "no certificate in PEM"),
        ] {
            fs::write(folder.join(file), broken).unwrap();
            let told: Vec<(String, bool)> = (0..3).map(|_| news(renewal.look(read(&folder)))).collect();
            assert!(told.iter().all(|(why, _)| why.contains(because)), "{told:?}");
            assert_eq!(told.iter().map(|(_, is_news)| *is_news).collect::<Vec<_>>(), [false, true, false]);
            assert_eq!(shown_by(&renewal, &cluster).await, before);
            fs::write(folder.join(KEY_FILE), &key).unwrap();
            fs::write(folder.join(CERTIFICATE_FILE), &certificate).unwrap();
            assert_eq!(renewal.look(read(&folder)), Seen::Same);
        }
        fs::remove_file(folder.join(KEY_FILE)).unwrap();
        assert!(news(renewal.look(read(&folder))).0.contains("there is no"));
        // Mended by what was meant: taken at once.
        cluster.authority().renew(&folder).unwrap();
        assert_eq!(renewal.look(read(&folder)), Seen::Renewed);
        assert_eq!(credentials.now().name().as_str(), "n1");
    }

    #[tokio::test]
    async fn the_certificate_of_another_node_and_of_another_ca_are_not_taken_over() {
        let cluster = Cluster::new("grove");
        let (_, credentials, mut renewal) = n1(&cluster);
        let why = |seen| format!("{seen:?}");
        let neighbour = why(renewal.look(read(&cluster.folder("n2", Role::Node))));
        assert!(neighbour.contains("they are for node n2") && neighbour.contains("this is node n1"), "{neighbour}");
        let elsewhere = tempfile::tempdir().unwrap();
        let own = elsewhere.path().join("n1");
        Authority::create_or_load(elsewhere.path(), "grove")
            .unwrap()
            .issue(credentials.now().name(), Role::Node, &own)
            .unwrap();
        let foreign = why(renewal.look(read(&own)));
        assert!(foreign.contains("another CA made them"), "{foreign}");
    }
}
