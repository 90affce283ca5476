//! Sending in one piece what lies in two places.

use std::io::{self, IoSlice};

use hiroma_sys::transport::Transport;

/// Sends `head` and then `body`.
pub fn send_both(transport: &mut dyn Transport, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(head), IoSlice::new(body)];
    let mut parts = &mut parts[..];
    while parts.iter().any(|part| !part.is_empty()) {
        match transport.send(parts, true) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use hiroma_far_wire::MAX_PAYLOAD;
    use hiroma_sys::transport::tcp::Tcp;

    use super::*;

    #[test]
    fn large_bodies_follow_their_heads_through_a_small_buffer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        let head: Vec<u8> = (0..100).collect();
        let body: Vec<u8> = (0..MAX_PAYLOAD).map(|at| (at % 251) as u8).collect();
        let sent = [head.clone(), body.clone()].concat();
        let sender = std::thread::spawn(move || {
            let mut transport = Tcp(Arc::new(stream));
            send_both(&mut transport, &head, &body).unwrap();
            send_both(&mut transport, &[], &[]).unwrap();
        });
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        sender.join().unwrap();
        assert!(received == sent);
    }
}
