//! The end: where going on could mean wrong bytes, the program is ended with a message instead.

use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a program that lost its far memory (EX_TEMPFAIL of sysexits.h).
pub const EXIT_CODE: i32 = 75;

static DYING: AtomicBool = AtomicBool::new(false);

/// Says something that the program can live with.
pub fn warn(what: &str) {
    let _ = rustix::io::write(rustix::stdio::stderr(), format!("hiroma: {what}\n").as_bytes());
}

/// Says why, and ends the process at once: no destructors, no handlers, nothing that could touch far memory.
pub fn die(why: &str) -> ! {
    if DYING.swap(true, Ordering::SeqCst) {
        // Another thread is at it already.
        loop {
            std::thread::park();
        }
    }
    let message = format!("hiroma: {why}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
    rustix_exit()
}

fn rustix_exit() -> ! {
    hiroma_kernel::exit::now(EXIT_CODE)
}
