//! What the kernel knows of a TCP connection.
//!
//! Contract: `getsockopt` fills a plain structure of integers that belongs to the caller.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// How long nothing has arrived from the peer: neither data nor an acknowledgement.
pub fn silence(socket: &impl AsFd) -> io::Result<Duration> {
    // SAFETY: zeros are a valid `tcp_info`, which consists of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the buffer is ours and as long as `len` says; the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::from_millis(u64::from(info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv))))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn silence_ends_with_data_and_with_answers_of_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let silent = silence(&near).unwrap();
        assert!((200..2_000).contains(&silent.as_millis()), "{silent:?}");
        far.write_all(b"x").unwrap();
        near.read_exact(&mut [0]).unwrap();
        assert!(silence(&near).unwrap() < silent);
        // Nobody reads at the other end, and its kernel answers all the same.
        std::thread::sleep(Duration::from_millis(300));
        near.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(silence(&near).unwrap() < Duration::from_millis(200));
    }
}
