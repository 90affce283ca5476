//! Reading the memory of this process by address, where a wrong address is an error.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::Error;

/// Something with addresses that can be read.
pub trait Memory {
    /// Fills `to` with the bytes from `address` on.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Error>;

    fn u64(&self, address: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn u32(&self, address: u64) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    /// A text that ends with a zero byte, of at most 255 bytes. Names in the tables are shorter.
    fn text(&self, address: u64) -> Result<String, Error> {
        let mut found = Vec::new();
        let mut at = address;
        while found.len() < 256 {
            // Up to the next multiple of 64, so that no page is read that the text does not reach.
            let mut piece = [0; 64];
            let len = 64 - (at % 64) as usize;
            let piece = piece.get_mut(..len).unwrap_or_default();
            self.read(at, piece)?;
            if let Some(end) = piece.iter().position(|&byte| byte == 0) {
                found.extend_from_slice(piece.get(..end).unwrap_or_default());
                break;
            }
            found.extend_from_slice(piece);
            at += len as u64;
        }
        Ok(String::from_utf8_lossy(&found).into_owned())
    }
}

/// `/proc/self/mem`.
#[derive(Debug)]
pub struct OwnMemory(File);

impl OwnMemory {
    pub fn open() -> Result<OwnMemory, Error> {
        File::open("/proc/self/mem").map(OwnMemory).map_err(|source| Error::Unreadable { address: 0, source })
    }
}

impl Memory for OwnMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Error> {
        self.0.read_exact_at(to, address).map_err(|source| Error::Unreadable { address, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_read_and_what_is_not_mapped_is_an_error() {
        let memory = OwnMemory::open().unwrap();
        let number = 0x1234_5678_9abc_def0_u64;
        assert_eq!(memory.u64((&raw const number).expose_provenance() as u64).unwrap(), number);
        let text = c"a name that is longer than one piece of sixty-four bytes, so that it takes two reads at least";
        assert_eq!(memory.text(text.as_ptr().expose_provenance() as u64).unwrap(), text.to_str().unwrap());
        assert!(matches!(memory.u64(8), Err(Error::Unreadable { address: 8, .. })));
        assert!(memory.text(u64::MAX - 3).is_err());
    }
}
