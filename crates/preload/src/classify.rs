//! Decides what the calls of the `mmap` family mean for managed memory. Pure: no system calls.

use std::ops::Range;

use hiroma_units::{EXTENT, PAGE};
use libc::{
    MAP_32BIT, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN, MAP_HUGETLB,
    MAP_LOCKED, MAP_PRIVATE, MAP_STACK, MAP_TYPE, PROT_NONE, PROT_READ, PROT_WRITE,
};

/// Shorter mappings are left to the kernel, as long as they are few (see `small.rs`).
pub const MANAGED_MIN: usize = 128 << 10;

/// Mappings from this length on are aligned to extents.
pub const ALIGNED_MIN: usize = 1 << 20;

/// Arguments of `mmap` that matter for the decision.
#[derive(Clone, Copy, Debug)]
pub struct MapCall {
    pub addr: usize,
    pub len: usize,
    pub prot: i32,
    pub flags: i32,
}

/// How an `mmap` is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapPlan {
    /// By the kernel, which also reports invalid arguments.
    PassThrough,
    /// As a new managed mapping. `protect`: the protection, if it is not read and write.
    Map { len: usize, align: usize, protect: Option<i32> },
    /// As new managed address space without access, to be committed later.
    Reserve { len: usize, align: usize },
    /// `MAP_FIXED` that overlaps the arena: the part inside is managed again, the rest is left to
    /// the kernel.
    Refresh(Split),
    /// An unmanaged mapping replaces managed memory.
    Replace(Split),
    /// Like `Refresh`, if the range is free.
    IfFree(Split),
    /// Like `Replace`, if the range is free.
    ReplaceIfFree(Split),
    /// Fails, because the range is in use.
    Exists,
}

/// A range cut at the edges of the arena; parts may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub before: Range<usize>,
    pub inside: Range<usize>,
    pub after: Range<usize>,
}

impl Split {
    /// The non-empty parts outside the arena.
    pub fn outside(&self) -> impl Iterator<Item = Range<usize>> {
        [self.before.clone(), self.after.clone()].into_iter().filter(|part| !part.is_empty())
    }

    /// Whether the whole range is inside the arena.
    pub fn is_managed(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}

/// Cuts `[addr, addr + len)` at the edges of the arena, with `len` rounded up to pages. `None` if
/// the range does not overlap the arena or is invalid (not aligned, empty, past the end of the
/// address space): then the call is left to the kernel.
pub fn split(addr: usize, len: usize, arena: &Range<usize>) -> Option<Split> {
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len))?;
    if len == 0 || addr % PAGE != 0 || end <= arena.start || addr >= arena.end {
        return None;
    }
    let inside = addr.max(arena.start)..end.min(arena.end);
    Some(Split { before: addr..inside.start, after: inside.end..end, inside })
}

/// Whether a mapping of this kind can be managed at all.
fn is_manageable(prot: i32, flags: i32) -> bool {
    const REFUSED: i32 = MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED | MAP_32BIT;
    flags & MAP_TYPE == MAP_PRIVATE
        && flags & MAP_ANONYMOUS != 0
        && flags & REFUSED == 0
        && prot & !(PROT_READ | PROT_WRITE) == 0
}

/// Unmanaged mappings are reported to the user once they have this size together.
pub const WORTH_TELLING: usize = 64 << 20;
/// Smaller ones do not count: code that is compiled at run time, for example.
const COUNTED_MIN: usize = 1 << 20;

/// Why a mapping that will contain data stays local, if the user would not expect it.
pub fn stays_local(call: &MapCall) -> Option<&'static str> {
    let MapCall { len, prot, flags, .. } = *call;
    let holds_data = prot & PROT_WRITE != 0 && flags & MAP_ANONYMOUS != 0 && len >= COUNTED_MIN;
    match flags & MAP_TYPE {
        MAP_PRIVATE if holds_data && prot & libc::PROT_EXEC != 0 => Some("that may hold code"),
        MAP_PRIVATE if holds_data && (flags & MAP_32BIT != 0 || asks_for_low(call)) => {
            Some("that is to be below 4 GiB")
        }
        libc::MAP_SHARED if holds_data => Some("that its children share"),
        _ => None,
    }
}

/// Whether a mapping with content is to be below 4 GiB: a program that names such an address keeps it
/// in 32 bits, or uses it without looking at what `mmap` returned. The kernel places it there if it is
/// free. Reservations are different: runtimes try several places for a heap, and take what they get.
fn asks_for_low(call: &MapCall) -> bool {
    call.addr != 0
        && call.prot != PROT_NONE
        && call.addr.checked_add(call.len).is_some_and(|end| end <= 1 << 32)
}

/// Decides an `mmap`. Shorter mappings than `managed_min` are left to the kernel.
pub fn map(call: MapCall, managed_min: usize, arena: &Range<usize>) -> MapPlan {
    let MapCall { addr, len, prot, flags } = call;
    let manageable = is_manageable(prot, flags);
    if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0 {
        return match split(addr, len, arena) {
            None => MapPlan::PassThrough,
            Some(split) if flags & MAP_FIXED_NOREPLACE != 0 && manageable && split.is_managed() => {
                MapPlan::IfFree(split)
            }
            Some(split) if flags & MAP_FIXED_NOREPLACE != 0 && split.is_managed() => {
                MapPlan::ReplaceIfFree(split)
            }
            Some(_) if flags & MAP_FIXED_NOREPLACE != 0 => MapPlan::Exists,
            Some(split) if manageable => MapPlan::Refresh(split),
            Some(split) => MapPlan::Replace(split),
        };
    }
    if asks_for_low(&call) {
        return MapPlan::PassThrough;
    }
    let is_long =
        |&len: &usize| len >= MANAGED_MIN || len >= managed_min && prot == PROT_READ | PROT_WRITE;
    let len = len.checked_next_multiple_of(PAGE).filter(|&len| manageable && len > 0);
    let Some(len) = len.filter(is_long) else { return MapPlan::PassThrough };
    let align = if len >= ALIGNED_MIN { EXTENT } else { PAGE };
    if prot == PROT_NONE {
        // A reservation that the arena could never hold is the program's bookkeeping, so the kernel
        // makes it.
        return if len > arena.len() / 2 {
            MapPlan::PassThrough
        } else {
            MapPlan::Reserve { len, align }
        };
    }
    let protect = (prot & PROT_WRITE == 0).then_some(prot);
    MapPlan::Map { len, align, protect }
}

/// The meaning of an advice for managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvicePlan {
    /// The content is not needed any more; the memory reads as zeros afterwards.
    Discard,
    WillNeed,
    Cold,
    Sequential,
    Random,
    Normal,
    /// The pager decides how pages are arranged: accepted without effect.
    Accept,
    /// Left to the kernel: it touches pages, which faults them in like any access.
    Kernel,
    /// The memory reads as zeros in children that are forked from now on, or no longer does.
    WipeOnFork(bool),
    /// The memory is absent in children that are forked from now on, or present again.
    DontFork(bool),
    /// Not supported for managed memory.
    Refuse,
}

/// Decides a `madvise` of managed memory.
pub fn advice(advice: i32) -> AdvicePlan {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => AdvicePlan::Discard,
        libc::MADV_WILLNEED => AdvicePlan::WillNeed,
        libc::MADV_COLD | libc::MADV_PAGEOUT => AdvicePlan::Cold,
        libc::MADV_SEQUENTIAL => AdvicePlan::Sequential,
        libc::MADV_RANDOM => AdvicePlan::Random,
        libc::MADV_NORMAL => AdvicePlan::Normal,
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => AdvicePlan::Accept,
        libc::MADV_DONTFORK => AdvicePlan::DontFork(true),
        libc::MADV_DOFORK => AdvicePlan::DontFork(false),
        libc::MADV_WIPEONFORK => AdvicePlan::WipeOnFork(true),
        libc::MADV_KEEPONFORK => AdvicePlan::WipeOnFork(false),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => AdvicePlan::Kernel,
        _ => AdvicePlan::Refuse,
    }
}

/// Arguments of `mremap` that matter for the decision.
#[derive(Clone, Copy, Debug)]
pub struct RemapCall {
    pub old: usize,
    pub old_len: usize,
    pub new_len: usize,
    pub flags: i32,
    pub new: usize,
}

/// How an `mremap` is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemapPlan {
    PassThrough,
    /// Within the arena, at any address with room.
    Resize {
        old_len: usize,
        new_len: usize,
        may_move: bool,
    },
    /// A mapping of the kernel's replaces managed memory.
    Replace(Split),
    /// From the arena to a fixed address, or the other way round: by copying.
    Copy {
        old_len: usize,
        new_len: usize,
    },
    /// The content moves, to a fixed or to any address, and the old mapping remains, empty
    /// (`MREMAP_DONTUNMAP`).
    Empty {
        len: usize,
        fixed: bool,
    },
    /// Fails with EINVAL or EFAULT.
    Refuse(i32),
}

/// Decides an `mremap`.
pub fn remap(call: RemapCall, arena: &Range<usize>) -> RemapPlan {
    let RemapCall { old, old_len, new_len, flags, new } = call;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let from = split(old, old_len, arena);
    let to = if fixed { split(new, new_len, arena) } else { None };
    let Some(from) = from else {
        return match to {
            Some(to) => RemapPlan::Replace(to),
            // Nothing of it moves; the kernel refuses to make a second mapping of what is private.
            None => RemapPlan::PassThrough,
        };
    };
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (Some(old_len), Some(new_len)) =
        (old_len.checked_next_multiple_of(PAGE), new_len.checked_next_multiple_of(PAGE))
    else {
        return RemapPlan::Refuse(libc::EINVAL);
    };
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    if stays && (old_len != new_len || flags & libc::MREMAP_MAYMOVE == 0) {
        return RemapPlan::Refuse(libc::EINVAL);
    }
    if flags & !(known | libc::MREMAP_DONTUNMAP) != 0
        || new_len == 0
        || (fixed && flags & libc::MREMAP_MAYMOVE == 0)
    {
        return RemapPlan::Refuse(libc::EINVAL);
    }
    if !from.is_managed() {
        return RemapPlan::Refuse(libc::EFAULT);
    }
    if stays && !fixed {
        return RemapPlan::Empty { len: old_len, fixed };
    }
    if !fixed {
        return RemapPlan::Resize { old_len, new_len, may_move: flags & libc::MREMAP_MAYMOVE != 0 };
    }
    let overlaps = new < old + old_len && new.checked_add(new_len).is_none_or(|end| end > old);
    if overlaps || new % PAGE != 0 {
        return RemapPlan::Refuse(libc::EINVAL);
    }
    if stays {
        RemapPlan::Empty { len: old_len, fixed }
    } else {
        RemapPlan::Copy { old_len, new_len }
    }
}

#[cfg(test)]
mod tests {
    use libc::PROT_EXEC;
    use proptest::prelude::*;

    use super::*;

    const ARENA: Range<usize> = 0x10_0000_0000..0x20_0000_0000;
    const ANON: i32 = MAP_PRIVATE | MAP_ANONYMOUS;
    const RW: i32 = PROT_READ | PROT_WRITE;

    fn new(len: usize, prot: i32, flags: i32) -> MapPlan {
        map(MapCall { addr: 0, len, prot, flags }, MANAGED_MIN, &ARENA)
    }

    fn at(addr: usize, len: usize, prot: i32, flags: i32) -> MapPlan {
        map(MapCall { addr, len, prot, flags }, MANAGED_MIN, &ARENA)
    }

    #[test]
    fn large_private_anonymous_memory_is_managed() {
        assert_eq!(
            new(MANAGED_MIN, RW, ANON),
            MapPlan::Map { len: MANAGED_MIN, align: PAGE, protect: None }
        );
        assert_eq!(
            new((4 << 20) + 1, RW, ANON),
            MapPlan::Map { len: (4 << 20) + PAGE, align: EXTENT, protect: None }
        );
        assert_eq!(
            new(1 << 20, PROT_READ, ANON),
            MapPlan::Map { len: 1 << 20, align: EXTENT, protect: Some(PROT_READ) }
        );
        assert_eq!(
            new(1 << 30, PROT_NONE, ANON | libc::MAP_NORESERVE),
            MapPlan::Reserve { len: 1 << 30, align: EXTENT }
        );
    }

    #[test]
    fn large_local_mappings_are_reported() {
        let told = |len, prot, flags| stays_local(&MapCall { addr: 0, len, prot, flags }).is_some();
        assert!(
            told(1 << 30, RW | PROT_EXEC, ANON)
                && told(1 << 30, RW, libc::MAP_SHARED | MAP_ANONYMOUS)
        );
        assert!(
            !told(1 << 30, RW, ANON)
                && !told(1 << 30, RW, libc::MAP_SHARED)
                && !told(1 << 19, RW | PROT_EXEC, ANON)
        );
        assert!(!told(1 << 30, PROT_NONE, libc::MAP_SHARED | MAP_ANONYMOUS));
    }

    #[test]
    fn address_hint_forces_placement_of_content_below_4_gib_only() {
        let anywhere = MapPlan::Map { len: 1 << 20, align: EXTENT, protect: None };
        assert_eq!(at((4 << 30) - (1 << 20) + PAGE, 1 << 20, RW, ANON), anywhere);
        assert_eq!(at(0x7000_0000_0000, 1 << 20, RW, ANON), anywhere);
        assert_eq!(at((4 << 30) - (1 << 20), 1 << 20, RW, ANON), MapPlan::PassThrough);
        assert_eq!(at(0x2000_0000, 1 << 20, libc::PROT_READ, ANON), MapPlan::PassThrough);
        assert!(matches!(at(0x2000_0000, 1 << 20, PROT_NONE, ANON), MapPlan::Reserve { .. }));
        let call = MapCall { addr: 0x2000_0000, len: 1 << 20, prot: RW, flags: ANON };
        assert!(stays_local(&call).is_some());
        let low = MapCall { addr: 0, flags: ANON | MAP_32BIT, ..call };
        assert!(stays_local(&low).is_some());
    }

    #[test]
    fn mappings_that_must_stay_local_are_passed_through() {
        let odd = [libc::MAP_STACK, MAP_GROWSDOWN, MAP_HUGETLB, MAP_LOCKED, MAP_32BIT];
        assert!(odd.iter().all(|flag| new(1 << 30, RW, ANON | flag) == MapPlan::PassThrough));
        assert_eq!(new(1 << 30, RW, libc::MAP_SHARED | MAP_ANONYMOUS), MapPlan::PassThrough);
        assert_eq!(new(1 << 30, RW, MAP_PRIVATE), MapPlan::PassThrough);
        assert_eq!(new(1 << 30, RW | PROT_EXEC, ANON), MapPlan::PassThrough);
        assert_eq!(new(MANAGED_MIN - PAGE, RW, ANON), MapPlan::PassThrough);
        assert_eq!(new(0, RW, ANON), MapPlan::PassThrough);
        assert_eq!(new(usize::MAX, RW, ANON), MapPlan::PassThrough);
    }

    #[test]
    fn short_mappings_are_managed_where_they_are_many() {
        let short = |prot| {
            let call = MapCall { addr: 0, len: PAGE + 1, prot, flags: ANON };
            map(call, PAGE, &ARENA)
        };
        assert_eq!(short(RW), MapPlan::Map { len: 2 * PAGE, align: PAGE, protect: None });
        assert_eq!(short(PROT_READ), MapPlan::PassThrough);
        assert_eq!(short(PROT_NONE), MapPlan::PassThrough);
        let none = MapCall { addr: 0, len: 0, prot: RW, flags: ANON };
        assert_eq!(map(none, PAGE, &ARENA), MapPlan::PassThrough);
    }

    #[test]
    fn reservation_larger_than_the_arena_is_passed_through() {
        assert_eq!(new(ARENA.len(), PROT_NONE, ANON), MapPlan::PassThrough);
        assert!(matches!(new(ARENA.len(), RW, ANON), MapPlan::Map { .. }));
    }

    #[test]
    fn fixed_mapping_over_arena_is_managed_when_possible() {
        let fixed = ANON | MAP_FIXED;
        let inside = Split {
            before: ARENA.start..ARENA.start,
            inside: ARENA.start..ARENA.start + PAGE,
            after: ARENA.start + PAGE..ARENA.start + PAGE,
        };
        assert_eq!(at(ARENA.start, PAGE, RW, fixed), MapPlan::Refresh(inside.clone()));
        assert_eq!(at(ARENA.start, 1, PROT_NONE, fixed), MapPlan::Refresh(inside.clone()));
        assert_eq!(at(ARENA.start, PAGE, RW | PROT_EXEC, fixed), MapPlan::Replace(inside.clone()));
        assert_eq!(at(ARENA.start, PAGE, RW, MAP_PRIVATE | MAP_FIXED), MapPlan::Replace(inside));
        assert_eq!(at(ARENA.start - PAGE, PAGE, RW, fixed), MapPlan::PassThrough);
        assert_eq!(at(ARENA.start + 1, PAGE, RW, fixed), MapPlan::PassThrough);
        assert!(matches!(
            at(ARENA.start, PAGE, RW, ANON | MAP_FIXED_NOREPLACE),
            MapPlan::IfFree(_)
        ));
        assert!(matches!(
            at(ARENA.start, PAGE, RW | PROT_EXEC, ANON | MAP_FIXED_NOREPLACE),
            MapPlan::ReplaceIfFree(_)
        ));
    }

    #[test]
    fn discards_and_hints_are_distinguished() {
        assert_eq!(advice(libc::MADV_DONTNEED), AdvicePlan::Discard);
        assert_eq!(advice(libc::MADV_FREE), AdvicePlan::Discard);
        assert_eq!(advice(libc::MADV_NOHUGEPAGE), AdvicePlan::Accept);
        assert_eq!(advice(libc::MADV_WIPEONFORK), AdvicePlan::WipeOnFork(true));
        assert_eq!(advice(libc::MADV_DOFORK), AdvicePlan::DontFork(false));
        assert_eq!(advice(-1), AdvicePlan::Refuse);
    }

    fn moving(old: usize, new: usize, flags: i32) -> RemapPlan {
        remap(RemapCall { old, old_len: 2 * PAGE, new_len: 3 * PAGE, flags, new }, &ARENA)
    }

    #[test]
    fn a_managed_mapping_is_resized_by_the_pager() {
        let (old_len, new_len) = (2 * PAGE, 3 * PAGE);
        assert_eq!(
            moving(ARENA.start, 0, 0),
            RemapPlan::Resize { old_len, new_len, may_move: false }
        );
        assert_eq!(
            moving(ARENA.start, 0, libc::MREMAP_MAYMOVE),
            RemapPlan::Resize { old_len, new_len, may_move: true }
        );
        assert_eq!(moving(0x1000, 0, libc::MREMAP_MAYMOVE), RemapPlan::PassThrough);
    }

    #[test]
    fn mremap_to_fixed_address_copies_or_replaces() {
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let copy = RemapPlan::Copy { old_len: 2 * PAGE, new_len: 3 * PAGE };
        assert_eq!(moving(ARENA.start, ARENA.start + (1 << 20), fixed), copy);
        assert_eq!(moving(ARENA.start, 0x10000, fixed), copy);
        assert!(matches!(moving(0x10000, ARENA.start, fixed), RemapPlan::Replace(_)));
        assert_eq!(moving(ARENA.start, ARENA.start + PAGE, fixed), RemapPlan::Refuse(libc::EINVAL));
        assert_eq!(
            moving(ARENA.start, 0x10000, libc::MREMAP_FIXED),
            RemapPlan::Refuse(libc::EINVAL)
        );
        assert_eq!(
            moving(ARENA.start - PAGE, 0, libc::MREMAP_MAYMOVE),
            RemapPlan::Refuse(libc::EFAULT)
        );
        assert_eq!(
            moving(ARENA.start, 0, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP),
            RemapPlan::Refuse(libc::EINVAL)
        );
        let same = RemapCall {
            old: ARENA.start,
            old_len: PAGE,
            new_len: PAGE,
            flags: libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
            new: 0,
        };
        assert_eq!(remap(same, &ARENA), RemapPlan::Empty { len: PAGE, fixed: false });
    }

    proptest! {
        #[test]
        fn split_parts_cover_the_range(page in 0_usize..0x300_0000, len in 1_usize..1 << 36) {
            let addr = page * PAGE;
            let end = addr + len.next_multiple_of(PAGE);
            match split(addr, len, &ARENA) {
                None => prop_assert!(end <= ARENA.start || addr >= ARENA.end),
                Some(parts) => {
                    prop_assert_eq!((parts.before.start, parts.before.end), (addr, parts.inside.start));
                    prop_assert_eq!((parts.after.start, parts.after.end), (parts.inside.end, end));
                    prop_assert!(!parts.inside.is_empty() && parts.inside.start >= ARENA.start && parts.inside.end <= ARENA.end);
                    prop_assert!(parts.before.end <= ARENA.start || parts.before.is_empty());
                    prop_assert!(parts.after.start >= ARENA.end || parts.after.is_empty());
                    prop_assert_eq!(parts.is_managed(), parts.outside().count() == 0);
                }
            }
        }
    }
}
