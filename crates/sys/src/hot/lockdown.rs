//! Whether the kernel is locked down (`kernel_lockdown(7)`): in mode `confidentiality` BPF programs
//! must not read kernel memory.

/// `[none] integrity confidentiality`; the current mode is in brackets.
const MODES: &str = "/sys/kernel/security/lockdown";

/// The kernel's command line.
const COMMAND_LINE: &str = "/proc/cmdline";

/// Why BPF cannot read kernel memory; none if lockdown is not the reason, or not known to be.
pub fn reason() -> Option<String> {
    match std::fs::read_to_string(MODES) {
        Ok(modes) => reason_in(&modes),
        // securityfs is often not mounted.
        Err(_) => reason_in_command_line(&std::fs::read_to_string(COMMAND_LINE).ok()?),
    }
}

fn reason_in(modes: &str) -> Option<String> {
    let (_, rest) = modes.split_once('[')?;
    (rest.split_once(']')?.0 == "confidentiality").then(|| told(MODES))
}

fn reason_in_command_line(options: &str) -> Option<String> {
    options
        .split_whitespace()
        .any(|option| option == "lockdown=confidentiality")
        .then(|| told(COMMAND_LINE))
}

fn told(seen_in: &str) -> String {
    format!(
        "the kernel is locked down ({seen_in}: confidentiality); start it with lockdown=integrity, or without that option"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_confidentiality_keeps_bpf_from_reading() {
        assert_eq!(reason_in("[none] integrity confidentiality\n"), None);
        assert_eq!(reason_in("none [integrity] confidentiality\n"), None);
        let told = reason_in("none integrity [confidentiality]\n").unwrap();
        assert!(told.contains("locked down") && told.contains("lockdown=integrity"), "{told}");
        for nonsense in ["", "none", "[", "]confidentiality[", "[confidentiality"] {
            assert_eq!(reason_in(nonsense), None, "{nonsense}");
        }
        assert!(
            reason_in_command_line("quiet lockdown=confidentiality ro\n")
                .unwrap()
                .contains("lockdown=integrity")
        );
        assert_eq!(
            reason_in_command_line("quiet lockdown=integrity nolockdown=confidentiality\n"),
            None
        );
    }
}
