//! Where to listen, as a user writes it.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};

/// Why a text is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError(String);

impl std::fmt::Display for AddressError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            formatter,
            "`{}` is not an address to listen on: write HOST:PORT, or :PORT for this machine alone",
            self.0
        )
    }
}

impl std::error::Error for AddressError {}

/// The address in `text`: `HOST:PORT`, or `:PORT`, which only this machine reaches.
///
/// # Errors
/// If there is no port, or the host has no address.
pub fn parse_address(text: &str) -> Result<SocketAddr, AddressError> {
    let error = || AddressError(text.to_owned());
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|_| error())?;
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_this_machine() {
        assert_eq!(parse_address(":9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse_address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert_eq!(parse_address("[::1]:80").unwrap().to_string(), "[::1]:80");
        for text in ["", ":", "9464", ":70000", "127.0.0.1", "127.0.0.1:x"] {
            assert!(parse_address(text).unwrap_err().to_string().contains("HOST:PORT"), "{text}");
        }
    }
}
