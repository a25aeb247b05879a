//! Memory of processes, and of the machine.

use std::fs;

use crate::LabError;

/// Resident memory of this process in bytes, shared pages included.
///
/// # Errors
/// [`LabError::Io`] if the system does not report it.
pub fn resident_bytes() -> Result<u64, LabError> {
    read("/proc/self/status", "VmRSS:")
}

/// Peak resident memory of this process in bytes, shared pages included.
///
/// # Errors
/// [`LabError::Io`] if the system does not report it.
pub fn peak_resident_bytes() -> Result<u64, LabError> {
    read("/proc/self/status", "VmHWM:")
}

/// Resident memory of another process in bytes, shared pages included.
///
/// # Errors
/// [`LabError::Io`] if the system does not report it, for example because the process has ended.
pub fn resident_bytes_of(process: u32) -> Result<u64, LabError> {
    read(&format!("/proc/{process}/status"), "VmRSS:")
}

/// Peak resident memory of another process in bytes, shared pages included.
///
/// # Errors
/// [`LabError::Io`] if the system does not report it, for example because the process has ended.
pub fn peak_resident_bytes_of(process: u32) -> Result<u64, LabError> {
    read(&format!("/proc/{process}/status"), "VmHWM:")
}

/// Memory in bytes that can be used before the machine must swap or kill a process.
///
/// # Errors
/// [`LabError::Io`] if the system does not report it.
pub fn available_bytes() -> Result<u64, LabError> {
    read("/proc/meminfo", "MemAvailable:")
}

fn read(file: &str, field: &str) -> Result<u64, LabError> {
    let doing = || LabError::io(format!("read {field} from {file}"));
    let text = fs::read_to_string(file).map_err(doing())?;
    parse(&text, field).ok_or_else(|| doing()(std::io::ErrorKind::InvalidData.into()))
}

fn parse(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_what_is_touched() {
        assert_eq!(parse("Name:\tx\nVmRSS:\t    12 kB\n", "VmRSS:"), Some(12 * 1024));
        assert_eq!(parse("VmRSS:\tlots\n", "VmRSS:"), None);
        let before = resident_bytes().unwrap();
        let touched = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(resident_bytes().unwrap() >= before + (24 << 20));
        drop(touched);
        assert!(peak_resident_bytes().unwrap() >= before + (24 << 20));
        assert!(resident_bytes_of(std::process::id()).unwrap() > 1 << 20);
        assert!(peak_resident_bytes_of(std::process::id()).unwrap() >= before + (24 << 20));
        assert!(available_bytes().unwrap() > 1 << 20);
    }
}
