//! Whether the kernel is locked down (`kernel_lockdown(7)`): in mode `confidentiality` BPF programs may not read kernel memory.

/// `[none] integrity confidentiality`, the mode in force in brackets.
const MODES: &str = "/sys/kernel/security/lockdown";

/// Why BPF cannot read kernel memory; none where lockdown is not the reason, or not known (securityfs is often not mounted).
pub fn reason() -> Option<String> {
    reason_in(&std::fs::read_to_string(MODES).ok()?)
}

fn reason_in(modes: &str) -> Option<String> {
    let (_, rest) = modes.split_once('[')?;
    match rest.split_once(']')?.0 {
        "confidentiality" => {
            Some(format!("the kernel is locked down ({MODES}: confidentiality); start it with lockdown=integrity, or without that option"))
        }
        _ => None,
    }
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
    }
}
