use std::sync::atomic::Ordering;

use openraft_rt_sim::SimRuntime;
use pando_protocol::ids::SessionId;

use super::super::fixture::{LEASE, Plane, node, simulated};
use super::super::leases::MARGIN;
use super::*;

const BEAT: Duration = Duration::from_millis(200);

/// Beats for this long, and returns what was answered.
async fn beat(plane: &Plane, session: SessionId, time: Duration) -> Vec<LeaderWord> {
    let (answer, mut answers) = mpsc::channel(1_000);
    for number in 0..u64::try_from(time.as_millis() / BEAT.as_millis()).unwrap() {
        plane.keeper.beat((node(), session), number, Duration::ZERO, answer.clone());
        SimRuntime::sleep(BEAT).await;
    }
    let mut heard = Vec::new();
    while let Ok(word) = answers.try_recv() {
        heard.push(word);
    }
    heard
}

#[test]
fn a_session_that_beats_stands_and_one_that_is_silent_ends_after_lease_and_margin() {
    simulated(async {
        let plane = Plane::start();
        let session = plane.grant(1).await;
        plane.keeper.granted((node(), session)).await;
        let answers = beat(&plane, session, LEASE * 3).await;
        assert_eq!(answers.len(), 30);
        SimRuntime::sleep(LEASE - BEAT).await;
        assert!(plane.stands(session));
        SimRuntime::sleep(MARGIN + BEAT).await;
        assert!(!plane.stands(session));
        assert_eq!(plane.ends_proposed(), 1);
    });
}

#[test]
fn a_session_whose_grant_nobody_heard_of_ends_like_any_other() {
    simulated(async {
        let plane = Plane::start();
        SimRuntime::sleep(BEAT).await;
        let session = plane.grant(1).await;
        SimRuntime::sleep(LEASE).await;
        assert!(plane.stands(session));
        SimRuntime::sleep(MARGIN + BEAT * 2).await;
        assert!(!plane.stands(session));
    });
}

#[test]
fn only_a_proof_of_leadership_tells_a_runner_that_its_session_is_over() {
    simulated(async {
        let plane = Plane::start();
        plane.proves.store(false, Ordering::Relaxed);
        assert_eq!(beat(&plane, SessionId(77), BEAT * 3).await, [], "it may have been granted by a later leader");
        plane.proves.store(true, Ordering::Relaxed);
        let over = LeaderWord::Over { session: SessionId(77) };
        assert_eq!(beat(&plane, SessionId(77), BEAT).await, [over]);
    });
}

#[test]
fn a_session_whose_end_may_be_in_the_log_is_not_answered_and_its_end_is_tried_again_at_a_measured_pace() {
    simulated(async {
        let plane = Plane::start();
        let session = plane.grant(1).await;
        plane.commits.store(false, Ordering::Relaxed);
        SimRuntime::sleep(LEASE + MARGIN + BEAT * 2).await;
        assert!(plane.ends_proposed() > 0);
        assert_eq!(beat(&plane, session, LEASE).await, []);
        assert!((10..40).contains(&plane.ends_proposed()), "{}", plane.ends_proposed());
        plane.commits.store(true, Ordering::Relaxed);
        SimRuntime::sleep(BEAT).await;
        assert!(!plane.stands(session));
    });
}

#[test]
fn a_new_leadership_gives_every_session_a_full_lease() {
    simulated(async {
        let plane = Plane::start();
        let session = plane.grant(1).await;
        SimRuntime::sleep(LEASE).await;
        plane.lead_again();
        SimRuntime::sleep(LEASE).await;
        assert!(plane.stands(session));
        SimRuntime::sleep(MARGIN + BEAT).await;
        assert!(!plane.stands(session));
    });
}
