//! The machine that a report was made on.

use serde::{Deserialize, Serialize};

/// The properties of a machine that matter for its figures. The caller determines them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu_model: String,
    /// Processors that the operating system may use.
    pub cores: u32,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Release of the running kernel.
    pub kernel: String,
    /// Name and version of the distribution.
    pub distribution: String,
    /// Anything else that matters for the figures: settings, hypervisor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

impl Machine {
    /// Describes the machine in one line.
    pub fn describe(&self) -> String {
        let gib = self.memory_bytes as f64 / (1u64 << 30) as f64;
        let mut parts = vec![
            format!("{} × {}", self.cores, self.cpu_model),
            format!("{gib:.1} GiB memory"),
            format!("Linux {}", self.kernel),
            self.distribution.clone(),
        ];
        parts.extend(self.remarks.iter().cloned());
        parts.retain(|part| !part.is_empty());
        parts.join(", ")
    }
}
