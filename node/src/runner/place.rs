//! Where a node runs: what must be the same before a free lock and a clean sweep prove that nothing of a former node process is
//! left.
//!
//! A data folder can be copied, or restored on another machine, while the machine that it came from runs on. Then the copy's
//! lock is free, and no process of that folder is found, and both say nothing.
//!
//! | compared | because |
//! | --- | --- |
//! | the boot | locks and processes are those of one running kernel |
//! | the lock file, by device and inode | a copy of it is another lock, which nobody ever held |
//! | the PID namespace | a sweep finds only what its own namespace holds. Its number is used again only when it is gone |
//! | the user | a sweep finds only what it may look into |
//!
//! A restarted container is a new PID namespace. From inside nobody can tell whether the old one is gone, so nothing is proven,
//! and the lease decides.
//!
//! **A new boot of the same machine** proves that everything is gone, without a lock and a sweep. It counts as the same machine
//! where both were outside any container, `/etc/machine-id` is there and the same, and the lock file has the same inode. That
//! assumes that no two machines share a machine id: whoever clones a disk must give the clone a new one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use crate::guard::GuardLock;

/// The number of the first PID namespace of every kernel.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// What stands for a machine without an id.
const NO_MACHINE: &str = "-";

/// Where a node process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    boot: String,
    device: u64,
    inode: u64,
    pid_namespace: u64,
    user: u32,
    machine: Option<String>,
}

impl Place {
    /// The place of this process, which holds this lock.
    ///
    /// # Errors
    /// Where `/proc` or the lock file cannot be read.
    pub fn here(lock: &GuardLock) -> io::Result<Self> {
        let lock = lock.metadata()?;
        let machine = fs::read_to_string("/etc/machine-id").ok().map(|id| id.trim().to_owned());
        Ok(Self {
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            device: lock.dev(),
            inode: lock.ino(),
            pid_namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
            user: rustix::process::geteuid().as_raw(),
            machine: machine.filter(|id| is_machine_id(id)),
        })
    }

    /// Whether a node process that is here, holds the lock and found nothing of the folder, knows that nothing is left of one
    /// that was at `former`.
    pub fn proves_over(&self, former: &Self) -> bool {
        let Self { boot, device, inode, pid_namespace, user, machine } = self;
        if *boot == former.boot {
            return (device, inode, pid_namespace, user)
                == (&former.device, &former.inode, &former.pid_namespace, &former.user);
        }
        let outside_containers = [*pid_namespace, former.pid_namespace] == [FIRST_PID_NAMESPACE; 2];
        // The number of a device may change from boot to boot.
        outside_containers && machine.is_some() && *machine == former.machine && *inode == former.inode
    }

    /// As one word, for [`Self::from_str`].
    pub fn to_word(&self) -> String {
        let Self { boot, device, inode, pid_namespace, user, machine } = self;
        let machine = machine.as_deref().unwrap_or(NO_MACHINE);
        format!("{boot},{device},{inode},{pid_namespace},{user},{machine}")
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = word.split(',').collect();
        let [boot, device, inode, pid_namespace, user, machine] = parts[..] else { return Err(()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        if boot.is_empty() || !(machine == NO_MACHINE || is_machine_id(machine)) {
            return Err(());
        }
        Ok(Self {
            boot: boot.to_owned(),
            device: number(device)?,
            inode: number(inode)?,
            pid_namespace: number(pid_namespace)?,
            user: user.parse().map_err(|_| ())?,
            machine: (machine != NO_MACHINE).then(|| machine.to_owned()),
        })
    }
}

/// An image may hold an empty one, or the word *uninitialized*, until its first boot.
fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn place() -> Place {
        Place {
            boot: "b".into(),
            device: 8,
            inode: 77,
            pid_namespace: FIRST_PID_NAMESPACE,
            user: 1000,
            machine: Some("0123456789abcdef0123456789abcdef".into()),
        }
    }

    #[test]
    fn the_same_place_proves_and_every_difference_within_one_boot_proves_nothing() {
        let here = place();
        assert!(here.proves_over(&here));
        for other in [
            Place { device: 9, ..place() },
            Place { inode: 78, ..place() },
            Place { pid_namespace: 1, ..place() },
            Place { user: 0, ..place() },
        ] {
            assert!(!here.proves_over(&other), "{other:?}");
        }
    }

    #[test]
    fn a_new_boot_proves_only_on_a_machine_that_is_known_to_be_the_same() {
        let here = Place { boot: "next".into(), device: 9, user: 0, ..place() };
        assert!(here.proves_over(&place()));
        let same_but = |change: fn(&mut Place)| {
            let (mut here, mut former) = (here.clone(), place());
            change(&mut here);
            change(&mut former);
            here.proves_over(&former)
        };
        assert!(!same_but(|place| place.machine = None), "two machines without an id are not the same");
        assert!(!same_but(|place| place.pid_namespace = 1), "a container has the machine id of its image");
        assert!(!here.proves_over(&Place { inode: 78, ..place() }), "a copy of the folder");
        assert!(!here.proves_over(&Place { machine: Some("f".repeat(32)), ..place() }));
    }

    #[test]
    fn a_word_comes_back_and_what_is_none_is_refused() {
        for place in [place(), Place { machine: None, ..place() }] {
            assert_eq!(place.to_word().parse(), Ok(place));
        }
        for word in ["", "b,8,77,1,0", "b,8,77,1,0,uninitialized", ",8,77,1,0,-", "b,8,x,1,0,-"] {
            assert_eq!(word.parse::<Place>(), Err(()), "{word}");
        }
    }
}
