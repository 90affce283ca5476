//! Pauses of reclaim in the journal: each is told with its reason, and with its end. Many short
//! ones in a row are told once.

use hiroma_policy::reclaim::Reason;

/// After a pause was told, those that begin within this time are not.
const QUIET_NS: u64 = 10_000_000_000;

/// What to tell of a reason.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Telling {
    /// What is told of reasons that have nothing to do with pauses.
    Usual,
    Nothing,
    /// This, in its place.
    End(String),
}

/// The pauses of one node.
#[derive(Default)]
pub(super) struct Pauses {
    since_ns: Option<u64>,
    is_told: bool,
    told_ns: Option<u64>,
}

impl Pauses {
    /// Takes note of the reason at `now_ns`.
    pub(super) fn note(&mut self, now_ns: u64, reason: &Reason) -> Telling {
        match (reason.is_pause(), self.since_ns) {
            (true, Some(_)) => Telling::Nothing,
            (true, None) => {
                self.since_ns = Some(now_ns);
                self.is_told = self.told_ns.is_none_or(|told_ns| now_ns >= told_ns + QUIET_NS);
                if !self.is_told {
                    return Telling::Nothing;
                }
                self.told_ns = Some(now_ns);
                Telling::Usual
            }
            (false, Some(since_ns)) => {
                self.since_ns = None;
                let ms = now_ns.saturating_sub(since_ns) / 1_000_000;
                match self.is_told {
                    true => Telling::End(format!("it goes on after {ms} ms: {reason}")),
                    false => Telling::Usual,
                }
            }
            (false, None) => Telling::Usual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_with_its_end_and_not_too_often() {
        const MS: u64 = 1_000_000;
        let came_back = Reason::CameBack { missed: 1, taken: 2, pause_ns: 500 * MS };
        let enough = Reason::Enough { free: 512, wanted: 256 };
        let mut pauses = Pauses::default();
        assert_eq!(pauses.note(0, &enough), Telling::Usual);
        assert_eq!(pauses.note(MS, &came_back), Telling::Usual);
        assert_eq!(pauses.note(2 * MS, &Reason::Paused { until_ns: 9 }), Telling::Nothing);
        assert_eq!(pauses.note(3 * MS, &came_back), Telling::Nothing);
        let Telling::End(text) = pauses.note(501 * MS, &enough) else { panic!("no end") };
        assert_eq!(text, "it goes on after 500 ms: 2 MiB free of 1 MiB wanted");
        // Within ten seconds of the first.
        assert_eq!(pauses.note(600 * MS, &came_back), Telling::Nothing);
        assert_eq!(pauses.note(700 * MS, &enough), Telling::Usual);
        assert_eq!(pauses.note(10_001 * MS, &came_back), Telling::Usual);
    }
}
