//! Reads the memory of this process by address; a wrong address is an error.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::Error;

/// `/proc/self/mem`.
#[derive(Debug)]
pub struct OwnMemory(File);

impl OwnMemory {
    pub fn open() -> Result<OwnMemory, Error> {
        File::open("/proc/self/mem")
            .map(OwnMemory)
            .map_err(|source| Error::Unreadable { address: 0, source })
    }

    pub fn u64(&self, address: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.0
            .read_exact_at(&mut bytes, address)
            .map_err(|source| Error::Unreadable { address, source })?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_readable_and_unmapped_fails() {
        let memory = OwnMemory::open().unwrap();
        let number = 0x1234_5678_9abc_def0_u64;
        assert_eq!(memory.u64((&raw const number).expose_provenance() as u64).unwrap(), number);
        assert!(matches!(memory.u64(8), Err(Error::Unreadable { address: 8, .. })));
    }
}
