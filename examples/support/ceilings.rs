//! What the machine can do at most, measured beside a benchmark.

use candlewick::kernel::{measure, Cpu};

/// A measured limit; no value where this machine or level has nothing to measure.
#[derive(Debug)]
pub(crate) struct Ceiling {
    pub(crate) name: &'static str,
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
}

impl Ceiling {
    /// The value in a unit that people read.
    pub(crate) fn text(&self) -> String {
        let Some(value) = self.value else { return "-".to_string() };
        match self.unit {
            "bytes_per_second" => format!("{:.1} GB/s", value / 1e9),
            "seconds" => format!("{:.2} µs", value * 1e6),
            _ => format!("{:.0} GMAC/s", value / 1e9),
        }
    }
}

/// Measures all of them on the threads and at the level of `cpu`.
pub(crate) fn measure(cpu: &Cpu) -> [Ceiling; 3] {
    let latency = measure::barrier_latency(cpu).as_secs_f64();
    [
        Ceiling { name: "read_bandwidth", value: measure::read_bandwidth(cpu), unit: "bytes_per_second" },
        Ceiling { name: "barrier_latency", value: Some(latency), unit: "seconds" },
        Ceiling { name: "int8_peak", value: measure::int8_peak(cpu), unit: "multiply_adds_per_second" },
    ]
}
