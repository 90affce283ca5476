//! Describes this machine, and formats the time.

use std::fs;
use std::time::SystemTime;

use hiroma_report::Machine;

/// Reads the description of this machine.
pub fn look() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, key: &str, separator: char| {
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .and_then(|line| line.split_once(separator));
        line.map_or(String::new(), |(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let cpuinfo = read("/proc/cpuinfo");
    let kib = after(&read("/proc/meminfo"), "MemTotal", ':')
        .trim_end_matches(" kB")
        .parse::<u64>()
        .unwrap_or(0);
    let mut remarks = Vec::new();
    if cpuinfo.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor")) {
        remarks.push("virtual machine".to_owned());
    }
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    if let Some((_, rest)) = huge.split_once('[') {
        remarks.push(format!(
            "transparent huge pages: {}",
            rest.split(']').next().unwrap_or_default()
        ));
    }
    Machine {
        cpu_model: after(&cpuinfo, "model name", ':'),
        cores: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        memory_bytes: kib << 10,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        distribution: after(&read("/etc/os-release"), "PRETTY_NAME", '='),
        remarks,
    }
}

/// The time, in UTC, as text: `2026-05-01 09:30 UTC`.
pub fn now() -> String {
    let text = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    format!("{} {} UTC", &text[..10], &text[11..16])
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_processors_memory_and_a_kernel() {
        let machine = super::look();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 26);
        assert!(machine.kernel.starts_with(|c: char| c.is_ascii_digit()));
    }
}
