//! Authorities and certificates: made, kept, renewed, refused.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn n1() -> NodeName {
    "n1".parse().unwrap()
}

#[test]
fn a_second_run_makes_nothing_new_and_keys_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("n1");
    let issue = || Authority::create_or_load(folder.path(), "grove").unwrap().issue(&n1(), Role::Node, &own).unwrap();
    assert_eq!(issue(), Issued::Made);
    let certificate = fs::read(own.join(CERTIFICATE_FILE)).unwrap();
    assert_eq!(issue(), Issued::AlreadyThere);
    assert_eq!(fs::read(own.join(CERTIFICATE_FILE)).unwrap(), certificate);
    for key in [folder.path().join(CA_KEY_FILE), own.join(KEY_FILE)] {
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "{key:?}");
    }
}

#[test]
fn an_incomplete_identity_is_completed_by_a_loaded_ca() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("n1");
    Authority::create_or_load(folder.path(), "grove").unwrap().issue(&n1(), Role::Node, &own).unwrap();
    fs::remove_file(own.join(CERTIFICATE_FILE)).unwrap();
    let loaded = Authority::create_or_load(folder.path(), "grove").unwrap();
    assert_eq!(loaded.issue(&n1(), Role::Node, &own).unwrap(), Issued::Made);
    assert_eq!(Identity::load(&own).unwrap().name(), &n1());
}

#[test]
fn a_damaged_ca_is_to_be_restored_and_never_to_be_made_again_by_itself() {
    for damaged in [CA_FILE, CA_KEY_FILE] {
        let folder = tempfile::tempdir().unwrap();
        Authority::create_or_load(folder.path(), "grove").unwrap();
        fs::write(folder.path().join(damaged), "no PEM").unwrap();
        let error = Authority::create_or_load(folder.path(), "grove").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(damaged) && error.contains("restore it from a copy"), "{error}");
        assert!(error.contains("new certificates for every node") && !error.contains("make it again"), "{error}");
        assert_eq!(fs::read_to_string(folder.path().join(damaged)).unwrap(), "no PEM", "left as it was");
        // What it advises is taken.
        fs::remove_file(folder.path().join(CA_FILE)).unwrap();
        fs::remove_file(folder.path().join(CA_KEY_FILE)).unwrap();
        Authority::create_or_load(folder.path(), "grove").unwrap();
    }
}

#[test]
fn an_expired_certificate_is_named_and_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("n1");
    let authority = Authority::create_or_load(folder.path(), "grove").unwrap();
    authority.issue(&n1(), Role::Node, &own).unwrap();
    let holder = Identity::load(&own).unwrap().own().clone();
    let key = KeyPair::generate().unwrap();
    let mut params = certificate_params(&holder, CERTIFICATE_VALIDITY).unwrap();
    params.not_after = (SystemTime::now() - DAY / 2).into();
    let expired = params.signed_by(&key, &authority.issuer).unwrap();
    fs::write(own.join(CERTIFICATE_FILE), expired.pem()).unwrap();
    fs::write(own.join(KEY_FILE), key.serialize_pem()).unwrap();
    let error = Identity::load(&own).unwrap_err();
    assert!(matches!(error, IdentityError::Expired(_)) && error.to_string().contains("certs renew"), "{error}");
    assert_eq!(authority.issue(&n1(), Role::Node, &own).unwrap(), Issued::Made);
    Identity::load(&own).unwrap();
}

#[test]
fn renewing_keeps_holder_role_and_permissions_and_changes_key_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("eve");
    let made = Authority::create_or_load(folder.path(), "grove").unwrap();
    let day = made.with_validity(DAY);
    day.issue(&"eve".parse().unwrap(), Role::Viewer, &own).unwrap();
    fs::set_permissions(own.join(KEY_FILE), fs::Permissions::from_mode(0o640)).unwrap();
    let (before, key) = (Identity::load(&own).unwrap(), fs::read(own.join(KEY_FILE)).unwrap());
    let left = before.valid_until().duration_since(SystemTime::now()).unwrap();
    assert!(left <= DAY && left > DAY - Duration::from_secs(60), "{left:?}");

    let holder = Authority::open(folder.path()).unwrap().renew(&own).unwrap();
    let after = Identity::load(&own).unwrap();
    assert_eq!((&holder, after.own()), (before.own(), before.own()));
    assert!(after.valid_until() > before.valid_until() + 300 * DAY && after.has_the_authority_of(&before));
    assert_ne!(fs::read(own.join(KEY_FILE)).unwrap(), key);
    assert_eq!(fs::metadata(own.join(KEY_FILE)).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn an_expired_certificate_and_one_cut_off_half_way_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("n1");
    let authority = Authority::create_or_load(folder.path(), "grove").unwrap().with_validity(Duration::ZERO);
    authority.issue(&n1(), Role::Node, &own).unwrap();
    fs::write(own.join(KEY_FILE), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    Authority::open(folder.path()).unwrap().renew(&own).unwrap();
    assert_eq!(Identity::load(&own).unwrap().name(), &n1());
}

#[test]
fn a_name_that_nobody_was_given_is_not_renewed() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = folder.path().join("n1");
    let authority = Authority::create_or_load(folder.path(), "grove").unwrap();
    authority.issue(&n1(), Role::Node, &own).unwrap();
    // The holder of a folder puts a certificate there that he made himself, with the role that he would like.
    let forged = elsewhere.path().join("n1");
    let foreign = Authority::create_or_load(elsewhere.path(), "grove").unwrap();
    foreign.issue(&n1(), Role::Admin, &forged).unwrap();
    fs::copy(forged.join(CERTIFICATE_FILE), own.join(CERTIFICATE_FILE)).unwrap();
    let refused = authority.renew(&own);
    assert!(
        matches!(refused, Err(CertsError::Identity(IdentityError::OtherAuthority { .. }))),
        "{:?}",
        refused.map_err(|error| error.to_string())
    );
    assert!(matches!(authority.renew(&forged), Err(CertsError::OtherAuthority(_))));
    assert!(matches!(Authority::open(&own), Err(CertsError::HalfAnAuthority { .. })));
    assert!(matches!(Authority::open(&forged.join("none")), Err(CertsError::NoAuthority(_))));
}

#[test]
fn another_ca_another_holder_and_another_cluster_are_refused() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = folder.path().join("n1");
    let authority = Authority::create_or_load(folder.path(), "grove").unwrap();
    authority.issue(&n1(), Role::Node, &own).unwrap();
    let foreign = Authority::create_or_load(other.path(), "grove").unwrap();
    assert!(matches!(foreign.issue(&n1(), Role::Node, &own), Err(CertsError::OtherAuthority(_))));
    assert!(matches!(authority.issue(&n1(), Role::Admin, &own), Err(CertsError::OtherHolder { .. })));
    assert!(matches!(Authority::create_or_load(folder.path(), "wood"), Err(CertsError::OtherCluster { .. })));
    assert!(matches!(Authority::create_or_load(other.path(), "a.b"), Err(CertsError::BadName(_))));
}

#[test]
fn half_an_authority_and_a_wrong_key_are_refused() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&folder, &other] {
        Authority::create_or_load(folder.path(), "grove").unwrap();
    }
    fs::copy(other.path().join(CA_KEY_FILE), folder.path().join(CA_KEY_FILE)).unwrap();
    let wrong = Authority::create_or_load(folder.path(), "grove");
    assert!(matches!(wrong, Err(CertsError::AuthorityKeyDoesNotFit { .. })));
    fs::remove_file(folder.path().join(CA_KEY_FILE)).unwrap();
    let half = Authority::create_or_load(folder.path(), "grove");
    assert!(matches!(half, Err(CertsError::HalfAnAuthority { .. })));
}
