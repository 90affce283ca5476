//! What machine this is, and what time.

use std::fs;
use std::time::SystemTime;

use hiroma_report::Machine;

/// Looks around.
pub fn look() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, key: &str, separator: char| {
        let line = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(separator));
        line.map_or(String::new(), |(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let cpuinfo = read("/proc/cpuinfo");
    let kib = after(&read("/proc/meminfo"), "MemTotal", ':').trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
    let mut remarks = Vec::new();
    if cpuinfo.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor")) {
        remarks.push("virtual machine".to_owned());
    }
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    if let Some((_, rest)) = huge.split_once('[') {
        remarks.push(format!("transparent huge pages: {}", rest.split(']').next().unwrap_or_default()));
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

/// The time, in UTC, as text.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minute) = ((seconds / 86_400) as i64, seconds % 86_400 / 60);
    // Civil date from days since 1970, after Howard Hinnant.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minute / 60, minute % 60)
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
