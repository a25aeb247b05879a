//! Memory of this process.

use std::fs;

use crate::BenchError;

/// Resident memory of this process in bytes, shared pages included.
///
/// # Errors
/// [`BenchError::Io`] if the system does not tell.
pub fn resident_bytes() -> Result<u64, BenchError> {
    let doing = || BenchError::io("read VmRSS from /proc/self/status");
    let status = fs::read_to_string("/proc/self/status").map_err(doing())?;
    parse(&status).ok_or_else(|| doing()(std::io::ErrorKind::InvalidData.into()))
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_what_is_touched() {
        assert_eq!(parse("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12 * 1024));
        assert_eq!(parse("VmRSS:\tlots\n"), None);
        let before = resident_bytes().unwrap();
        let touched = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(resident_bytes().unwrap() >= before + (24 << 20));
        drop(touched);
    }
}
