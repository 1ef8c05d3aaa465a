//! The programs under test, built as this test was.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The folder with `pando`, `pando-node` and the example programs, built in the profile of this test. `cargo test` alone does
/// not build programs of other packages; where they are up to date this costs a moment.
///
/// # Panics
/// Where they cannot be built.
pub fn folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build).clone()
}

/// A program of this package, built as this one was: `cargo run` builds only the one that it runs.
///
/// # Panics
/// Where it cannot be built.
pub fn own(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| cargo_build(&["--bin", "stamp", "--bin", "witness", "-p", "pando-tests"]));
    profile_folder().join(name)
}

fn build() -> PathBuf {
    cargo_build(&["--bins", "-p", "pando", "-p", "pando-node", "-p", "pando-examples"]);
    profile_folder()
}

fn profile_folder() -> PathBuf {
    // target/<profile>/deps/<this test>, or target/<profile>/<this program>
    let own = std::env::current_exe().expect("the path of this test");
    let folder = own.parent().expect("target/<profile>");
    if folder.ends_with("deps") { folder.parent().expect("target/<profile>") } else { folder }.to_owned()
}

fn cargo_build(what: &[&str]) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet"]).args(what);
    cargo.current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".."));
    // What cargo tells a test of its package is no setting of this build: a build script that looks at it would run again, and
    // all that needs it be built anew, with each turn from the tests to their programs and back.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_package(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    if profile_folder().ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the programs under test do not build");
}

fn is_of_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"]
        .iter()
        .any(|start| variable.starts_with(start))
}
