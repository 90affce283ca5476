//! The decision on each 2 MiB range.

use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

/// Thresholds and limits. All of them can be changed while a process is managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Hot pages of 512 from which a range is collapsed (the paper's default: a quarter, 128).
    pub collapse_hot_pages: u16,
    /// Hot pages from which the program is asked to regroup a range that is not collapsed.
    pub regroup_hot_pages: u16,
    /// A page is hot when it was touched in at least this share of the windows in which it was
    /// watched, in 1/1000 …
    pub hot_share_permille: u16,
    /// … and at least this often.
    pub hot_count_min: u16,
    /// Windows that a range must have been watched for before anything is decided on it.
    pub windows_min: u16,
    /// Upper limit of the bytes in huge pages that the service made.
    pub budget_bytes: u64,
    /// By how much collapsing may grow the process, in millionths of what it had resident: pages of
    /// a range that were not present before are present after the collapse.
    pub growth_ppm: u32,
    /// Checks in a row that must find a huge range cold before it is split.
    pub cold_checks: u8,
    /// Maximum number of ranges collapsed in one step.
    pub collapses_per_step: u16,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            collapse_hot_pages: (PAGES_PER_EXTENT / 4) as u16,
            regroup_hot_pages: 1,
            hot_share_permille: 250,
            hot_count_min: 2,
            windows_min: Settings::WINDOWS_MIN,
            budget_bytes: u64::MAX,
            growth_ppm: 5_000,
            cold_checks: 2,
            collapses_per_step: 64,
        }
    }
}

impl Settings {
    /// The default of [`Settings::windows_min`].
    pub const WINDOWS_MIN: u16 = 4;
    /// A page that was touched in a smaller share of its windows than this is never hot, however
    /// cold all pages are; in 1/1000.
    pub const HOT_SHARE_PERMILLE_MIN: u16 = 100;

    /// The count from which a page that was watched for `windows` windows is hot. The hottest tenth
    /// of the pages in use was touched in `top_permille` of its windows: where windows are short
    /// for the program, half of that is as hot as pages get.
    pub fn hot_count(&self, windows: u16, top_permille: u16) -> u16 {
        let permille =
            (top_permille / 2).max(Settings::HOT_SHARE_PERMILLE_MIN).min(self.hot_share_permille);
        let share = (u32::from(windows) * u32::from(permille)).div_ceil(1000);
        self.hot_count_min.max(share as u16)
    }
}

/// What is known about one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeFacts {
    /// Its number: address divided by 2 MiB.
    pub range: u64,
    /// Pages present, of 512.
    pub present: u16,
    /// Hot pages, of 512; for a huge range, the pages that were hot before the collapse or at the
    /// last check.
    pub hot: u16,
    /// Whether it is mapped by one huge page.
    pub huge: bool,
    /// Whether the service made it huge.
    pub ours: bool,
    /// Whether it is completely in memory that can be huge, and was not refused before.
    pub may_be_huge: bool,
    /// Windows in which it was watched, as far as they are still remembered.
    pub windows: u16,
    /// Checks in a row that found it cold while huge.
    pub cold_checks: u8,
    /// Whether its huge page costs nothing: it added no memory, and huge pages are not scarce.
    pub is_free: bool,
}

/// State of the process and the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Situation {
    /// Bytes resident when managing began.
    pub resident_bytes: u64,
    /// Bytes that collapsing has added so far.
    pub grown_bytes: u64,
    /// Bytes in huge pages that the service made.
    pub huge_bytes: u64,
    /// Huge pages that the kernel can allocate without compacting memory first.
    pub free_huge_pages: u64,
}

/// What to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Make it huge in place.
    Collapse,
    /// Ask the program to move its hot objects elsewhere, onto a huge page.
    Regroup,
    /// Split the huge page.
    Split,
    /// Do nothing.
    Leave,
}

/// The reason for a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its number of hot pages reaches the threshold.
    HotEnough,
    /// It has hot pages, but too few.
    TooFewHot,
    /// It has no hot pages.
    Cold,
    /// It has not been watched long enough.
    NotYetKnown,
    /// It is huge and in use.
    InUse,
    /// It was found cold in several checks.
    WentCold,
    /// The huge pages exceed the budget.
    OverBudget,
    /// It would add more memory than is allowed.
    GrowsTooMuch,
    /// The machine has no free huge page.
    NoFreeHugePage,
    /// It cannot be huge: not aligned memory of one kind, or refused by the kernel.
    CannotBeHuge,
    /// Deferred to a later step.
    Later,
}

/// The decision on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub range: u64,
    pub decision: Decision,
    pub reason: Reason,
}

/// The decision on a range by itself; limits are applied afterwards. A program with better
/// knowledge can supply its own rule.
pub trait Rule: Send {
    /// The decision on one range, without regard to the others.
    fn judge(&self, settings: &Settings, facts: &RangeFacts) -> (Decision, Reason);
}

/// The paper's rule, and splitting ranges that became cold.
#[derive(Clone, Copy, Debug, Default)]
pub struct PaperRule;

impl Rule for PaperRule {
    fn judge(&self, settings: &Settings, facts: &RangeFacts) -> (Decision, Reason) {
        if facts.huge {
            let cold = facts.ours
                && !facts.is_free
                && settings.cold_checks > 0
                && facts.cold_checks >= settings.cold_checks;
            return if cold {
                (Decision::Split, Reason::WentCold)
            } else {
                (Decision::Leave, Reason::InUse)
            };
        }
        if facts.windows < settings.windows_min {
            (Decision::Leave, Reason::NotYetKnown)
        } else if facts.hot == 0 {
            (Decision::Leave, Reason::Cold)
        } else if facts.hot >= settings.collapse_hot_pages && facts.may_be_huge {
            (Decision::Collapse, Reason::HotEnough)
        } else if facts.hot >= settings.regroup_hot_pages && facts.hot < settings.collapse_hot_pages
        {
            (Decision::Regroup, Reason::TooFewHot)
        } else {
            let reason = if facts.may_be_huge { Reason::TooFewHot } else { Reason::CannotBeHuge };
            (Decision::Leave, reason)
        }
    }
}

/// Applies a rule to all ranges, and the limits to the results.
pub struct Planner {
    rule: Box<dyn Rule>,
    candidates: Vec<Candidate>,
}

struct Candidate {
    at: usize,
    missing: u16,
    hot: u16,
}

impl Default for Planner {
    fn default() -> Planner {
        Planner::new(Box::new(PaperRule))
    }
}

impl Planner {
    /// A planner that applies `rule`.
    pub fn new(rule: Box<dyn Rule>) -> Planner {
        Planner { rule, candidates: Vec::new() }
    }

    /// Appends one verdict for each of `facts`, in their order. Ranges that add no memory are
    /// collapsed first, among those the hottest; ties are broken by address.
    pub fn plan(
        &mut self,
        settings: &Settings,
        situation: &Situation,
        facts: &[RangeFacts],
        out: &mut Vec<Verdict>,
    ) {
        let begin = out.len();
        self.candidates.clear();
        let mut huge_bytes = situation.huge_bytes;
        for (at, fact) in facts.iter().enumerate() {
            let (decision, reason) = self.rule.judge(settings, fact);
            if decision == Decision::Collapse {
                let missing = (PAGES_PER_EXTENT as u16).saturating_sub(fact.present);
                self.candidates.push(Candidate { at, missing, hot: fact.hot });
            }
            if decision == Decision::Split && fact.ours {
                huge_bytes = huge_bytes.saturating_sub(EXTENT as u64);
            }
            out.push(Verdict { range: fact.range, decision, reason });
        }
        let verdicts = &mut out[begin..];
        huge_bytes = shrink(settings, huge_bytes, facts, verdicts);
        self.admit(settings, situation, huge_bytes, verdicts);
    }

    fn admit(
        &mut self,
        settings: &Settings,
        situation: &Situation,
        mut huge_bytes: u64,
        verdicts: &mut [Verdict],
    ) {
        self.candidates
            .sort_by_key(|candidate| (candidate.missing, u16::MAX - candidate.hot, candidate.at));
        let growth_max =
            u128::from(situation.resident_bytes) * u128::from(settings.growth_ppm) / 1_000_000;
        let growth_max = growth_max.min(u128::from(u64::MAX)) as u64;
        let mut grown = situation.grown_bytes;
        let mut free = situation.free_huge_pages;
        let mut taken = 0;
        for candidate in &self.candidates {
            let verdict = &mut verdicts[candidate.at];
            let adds = u64::from(candidate.missing) * PAGE as u64;
            let refusal = if huge_bytes.saturating_add(EXTENT as u64) > settings.budget_bytes {
                Some(Reason::OverBudget)
            } else if adds > 0 && grown.saturating_add(adds) > growth_max {
                Some(Reason::GrowsTooMuch)
            } else if free == 0 {
                Some(Reason::NoFreeHugePage)
            } else if taken >= settings.collapses_per_step {
                Some(Reason::Later)
            } else {
                None
            };
            if let Some(reason) = refusal {
                // Hot objects can still be moved to where they cost no memory.
                let decision = if reason == Reason::GrowsTooMuch {
                    Decision::Regroup
                } else {
                    Decision::Leave
                };
                (verdict.decision, verdict.reason) = (decision, reason);
                continue;
            }
            huge_bytes += EXTENT as u64;
            grown = grown.saturating_add(adds);
            free -= 1;
            taken += 1;
        }
    }
}

/// Splits the coldest of the ranges that the service made huge until the rest is within the budget;
/// returns the huge bytes that remain.
fn shrink(
    settings: &Settings,
    mut huge_bytes: u64,
    facts: &[RangeFacts],
    verdicts: &mut [Verdict],
) -> u64 {
    if huge_bytes <= settings.budget_bytes {
        return huge_bytes;
    }
    let stays = |at: &usize| {
        facts[*at].huge && facts[*at].ours && verdicts[*at].decision != Decision::Split
    };
    let mut huge: Vec<usize> = (0..facts.len()).filter(stays).collect();
    huge.sort_by_key(|&at| (u8::MAX - facts[at].cold_checks, facts[at].hot, at));
    for at in huge {
        if huge_bytes <= settings.budget_bytes {
            break;
        }
        (verdicts[at].decision, verdicts[at].reason) = (Decision::Split, Reason::OverBudget);
        huge_bytes = huge_bytes.saturating_sub(EXTENT as u64);
    }
    huge_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hot(range: u64, hot: u16, present: u16) -> RangeFacts {
        RangeFacts { range, present, hot, may_be_huge: true, windows: 8, ..RangeFacts::default() }
    }

    fn plan(settings: &Settings, situation: &Situation, facts: &[RangeFacts]) -> Vec<Verdict> {
        let mut out = Vec::new();
        Planner::default().plan(settings, situation, facts, &mut out);
        out
    }

    fn roomy() -> Situation {
        Situation { resident_bytes: 1 << 30, free_huge_pages: 1000, ..Situation::default() }
    }

    #[test]
    fn hot_threshold_drops_when_hottest_pages_are_rare() {
        let settings = Settings::default();
        let counts = |windows, top: [u16; 5]| top.map(|top| settings.hot_count(windows, top));
        assert_eq!(counts(100, [1000, 500, 300, 200, 0]), [25, 25, 15, 10, 10]);
        assert_eq!(counts(4, [1000, 500, 300, 200, 0]), [2; 5]);
        let lenient = Settings { hot_share_permille: 50, ..settings };
        assert_eq!(lenient.hot_count(100, 1000), 5);
    }

    #[test]
    fn quarter_hot_collapses_and_fewer_regroup() {
        let out = plan(
            &Settings::default(),
            &roomy(),
            &[hot(1, 128, 512), hot(2, 127, 512), hot(3, 0, 512)],
        );
        let decisions: Vec<Decision> = out.iter().map(|verdict| verdict.decision).collect();
        assert_eq!(decisions, [Decision::Collapse, Decision::Regroup, Decision::Leave]);
    }

    #[test]
    fn half_empty_range_is_regrouped_under_growth_limit() {
        let situation = Situation { resident_bytes: 4 << 20, ..roomy() };
        let out = plan(&Settings::default(), &situation, &[hot(1, 200, 256), hot(2, 200, 512)]);
        assert_eq!((out[0].decision, out[0].reason), (Decision::Regroup, Reason::GrowsTooMuch));
        assert_eq!(out[1].decision, Decision::Collapse);
    }

    #[test]
    fn smaller_budget_splits_the_coldest() {
        let huge = |range, hot, cold_checks| RangeFacts {
            huge: true,
            ours: true,
            cold_checks,
            ..self::hot(range, hot, 512)
        };
        let settings = Settings { budget_bytes: EXTENT as u64, ..Settings::default() };
        let situation = Situation { huge_bytes: 3 * EXTENT as u64, ..roomy() };
        let out = plan(&settings, &situation, &[huge(1, 300, 1), huge(2, 400, 0), huge(3, 200, 0)]);
        let split: Vec<u64> =
            out.iter().filter(|v| v.decision == Decision::Split).map(|v| v.range).collect();
        assert_eq!(split, [1, 3]);
    }

    #[test]
    fn no_decision_without_enough_windows() {
        let fresh = RangeFacts { windows: 3, ..hot(1, 512, 512) };
        assert_eq!(plan(&Settings::default(), &roomy(), &[fresh])[0].reason, Reason::NotYetKnown);
    }

    #[test]
    fn foreign_huge_pages_are_left_alone() {
        let theirs = RangeFacts { huge: true, cold_checks: 9, ..hot(1, 0, 512) };
        let settings = Settings { budget_bytes: 0, ..Settings::default() };
        let situation = Situation { huge_bytes: EXTENT as u64, ..roomy() };
        assert_eq!(plan(&settings, &situation, &[theirs])[0].decision, Decision::Leave);
    }

    fn any_facts() -> impl Strategy<Value = RangeFacts> {
        (0u16..=512, 0u16..=512, any::<bool>(), any::<bool>(), any::<bool>(), 0u16..20, 0u8..4)
            .prop_map(|(present, hot, huge, ours, may_be_huge, windows, cold_checks)| RangeFacts {
                is_free: present % 3 == 0,
                range: 0,
                present: present.max(hot),
                hot,
                huge,
                ours: ours && huge,
                may_be_huge,
                windows,
                cold_checks,
            })
    }

    proptest! {
        #[test]
        fn no_plan_breaks_a_limit(
            mut facts in proptest::collection::vec(any_facts(), 0..60),
            budget in 0u64..80, growth in 0u32..2000, free in 0u64..40, per_step in 0u16..40,
        ) {
            facts.iter_mut().enumerate().for_each(|(at, fact)| fact.range = at as u64);
            let settings = Settings {
                budget_bytes: budget * EXTENT as u64, growth_ppm: growth * 1000, collapses_per_step: per_step, ..Settings::default()
            };
            let ours = facts.iter().filter(|fact| fact.ours).count() as u64;
            let resident: u64 = facts.iter().map(|fact| u64::from(fact.present) * PAGE as u64).sum();
            let situation =
                Situation { resident_bytes: resident, grown_bytes: 0, huge_bytes: ours * EXTENT as u64, free_huge_pages: free };
            let out = plan(&settings, &situation, &facts);
            prop_assert_eq!(&out, &plan(&settings, &situation, &facts));
            prop_assert_eq!(out.len(), facts.len());
            let count = |decision| out.iter().filter(|verdict| verdict.decision == decision).count() as u64;
            let (collapsed, split) = (count(Decision::Collapse), count(Decision::Split));
            prop_assert!(collapsed <= free.min(u64::from(per_step)));
            prop_assert!(ours + collapsed - split <= budget);
            let added: u64 = out.iter().zip(&facts).filter(|(verdict, _)| verdict.decision == Decision::Collapse)
                .map(|(_, fact)| u64::from(512 - fact.present) * PAGE as u64).sum();
            prop_assert!(u128::from(added) * 1000 <= u128::from(resident) * u128::from(growth));
            for (verdict, fact) in out.iter().zip(&facts) {
                prop_assert_eq!(verdict.range, fact.range);
                prop_assert!(verdict.decision != Decision::Split || fact.ours);
                prop_assert!(verdict.decision != Decision::Collapse || !fact.huge && fact.may_be_huge);
            }
        }
    }
}
