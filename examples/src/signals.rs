//! Being told by a signal. The standard library has no way to catch one, so this declares the C function itself.

use std::sync::atomic::{AtomicBool, Ordering};

/// The number of SIGUSR1 on Linux on every architecture that Pando is built for (x86, ARM, RISC-V).
const SIGUSR1: i32 = 10;
/// What `signal` returns when it fails.
const SIG_ERR: usize = usize::MAX;

static USER_SIGNAL_CAME: AtomicBool = AtomicBool::new(false);

/// Catches SIGUSR1 from now on; [`user_signal_came`] tells of it. Whether that worked.
#[allow(unsafe_code)] // The only foreign call of the examples: a dependency for one function would be larger than it.
pub fn catch_user_signal() -> bool {
    unsafe extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    }
    // SAFETY: the declaration is that of POSIX with pointer-sized results, and the handler only stores to an atomic, which
    // is safe in a signal handler.
    unsafe { signal(SIGUSR1, remember) != SIG_ERR }
}

/// Whether SIGUSR1 came since this was last asked.
pub fn user_signal_came() -> bool {
    USER_SIGNAL_CAME.swap(false, Ordering::Relaxed)
}

extern "C" fn remember(_number: i32) {
    USER_SIGNAL_CAME.store(true, Ordering::Relaxed);
}
