//! What the kernel and this user's rights allow.

use std::fs;

use hiroma_far::config::PathChoice;
use hiroma_sys::uffd::{self, Features, UffdError};

/// Commands that allow a user to use userfaultfd: until the next boot, and permanently.
pub const ALLOW_NOW: &str = "sudo sysctl -w vm.unprivileged_userfaultfd=1";
pub const ALLOW_FOR_GOOD: &str = "echo vm.unprivileged_userfaultfd=1 | sudo tee /etc/sysctl.d/60-hiroma.conf && sudo sysctl --system";

/// Version of the running kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// The oldest version that works at all: it has userfaultfd write protection.
    pub const OLDEST: KernelVersion = KernelVersion(5, 7);
    /// The first version with `UFFDIO_MOVE`.
    pub const FULL: KernelVersion = KernelVersion(6, 8);

    /// The version that runs here. None: its release string is not understood.
    pub fn running() -> Option<KernelVersion> {
        KernelVersion::parse(&rustix::system::uname().release().to_string_lossy())
    }

    fn parse(release: &str) -> Option<KernelVersion> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(KernelVersion(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The kernel interface that the pager uses here by default, or the reason why there is none.
pub fn best_path() -> Result<PathChoice, String> {
    let features = uffd::probe().map_err(|error| match error {
        UffdError::NotPermitted(why) => format!("userfaultfd is not allowed to this user ({why})"),
        other => other.to_string(),
    })?;
    if features.has(Features::MOVE) {
        Ok(PathChoice::Full)
    } else if features.has(Features::WP) {
        Ok(PathChoice::Fallback)
    } else {
        Err(format!(
            "this kernel cannot write-protect through userfaultfd: use Linux {} or newer, best {} or newer",
            KernelVersion::OLDEST,
            KernelVersion::FULL
        ))
    }
}

/// The content of `/proc/sys/NAME`, trimmed.
pub fn sysctl(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_kernels_are_distinguished() {
        assert_eq!(KernelVersion::parse("6.1.0-30-amd64"), Some(KernelVersion(6, 1)));
        assert_eq!(KernelVersion::parse("5.4.0-200-generic"), Some(KernelVersion(5, 4)));
        assert_eq!(KernelVersion::parse("6.12-rc1"), Some(KernelVersion(6, 12)));
        assert_eq!(KernelVersion::parse("unknown"), None);
        assert!(
            KernelVersion(5, 15) > KernelVersion::OLDEST
                && KernelVersion(6, 12) > KernelVersion::FULL
        );
    }
}
