//! Tests that run themselves again in Linux namespaces that they make, so that nothing of the machine is touched and everything
//! is gone when they end.

use std::process::Command;

/// Set where a test runs in its namespaces.
const INSIDE: &str = "PANDO_TEST_INSIDE";

/// Whether this process runs in the namespaces that [`run_again`] made.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs the test of this name of this program again, in namespaces of these kinds (as `unshare` calls them), and of users where
/// it is not root. It needs `unshare`.
///
/// # Panics
/// The test fails there, or there is no `unshare`.
pub fn run_again(test: &str, kinds: &[&str]) {
    // The programs are built outside, where cargo finds everything it needs.
    crate::programs::folder();
    let mut again = Command::new("unshare");
    again.args(kinds);
    if !rustix::process::geteuid().is_root() {
        again.args(["--user", "--map-root-user"]);
    }
    let own = std::env::current_exe().expect("the path of this test");
    again.arg(own).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let status = again.status().expect("unshare, from util-linux");
    assert!(status.success(), "{status}");
}

/// A new network has a loopback that is down. It needs `ip`.
///
/// # Panics
/// It cannot be raised.
pub fn raise_loopback() {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip, from iproute2");
    assert!(status.success(), "ip link set lo up: {status}");
}
