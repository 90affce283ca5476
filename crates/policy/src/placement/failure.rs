//! What happens to a page that arrives where no frame is free (section 2.3).

use super::config::FailureKind;

/// What the node does with a page that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// There is a frame for it.
    Keep,
    /// It replaces another page, which leaves in turn.
    Replace,
    /// It goes back to the node that sent it.
    SendBack,
    /// This node chooses the next destination.
    SendOn,
    /// It goes to disk.
    Disk,
}

/// What happens to a page without a frame that was sent `attempts` times, where `attempts_max`
/// repetitions are allowed.
pub fn without_frame(kind: FailureKind, attempts: u32, attempts_max: u32) -> Arrival {
    if attempts > attempts_max {
        return Arrival::Disk;
    }
    match kind {
        FailureKind::Replace => Arrival::Replace,
        FailureKind::Return => Arrival::SendBack,
        FailureKind::Cascade => Arrival::SendOn,
        FailureKind::Disk => Arrival::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_on_disk() {
        for (kind, arrival) in [
            (FailureKind::Replace, Arrival::Replace),
            (FailureKind::Return, Arrival::SendBack),
            (FailureKind::Cascade, Arrival::SendOn),
        ] {
            assert_eq!(without_frame(kind, 1, 3), arrival);
            assert_eq!(without_frame(kind, 3, 3), arrival);
            assert_eq!(without_frame(kind, 4, 3), Arrival::Disk);
        }
        assert_eq!(without_frame(FailureKind::Disk, 1, 3), Arrival::Disk);
    }
}
