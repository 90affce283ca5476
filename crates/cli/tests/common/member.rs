//! Members of a pool.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

use super::hiroma;

/// One member; killed when it is dropped.
pub struct Member {
    pub child: Child,
    pub address: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `hiroma serve`.
pub fn serve(memory: &str, args: &[&str]) -> Child {
    let mut command = hiroma(["serve", "--memory", memory].iter().chain(args));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

impl Member {
    /// Starts a member, and waits until it is ready.
    pub fn start(memory: &str, listen: &str, args: &[&str]) -> Member {
        let mut child = serve(memory, &[&["--listen", listen], args].concat());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().nth(4).unwrap_or_default().trim_end_matches(',');
        assert!(!address.is_empty(), "{line} {}", text(child.stderr.take().unwrap()));
        Member { address: address.to_owned(), child }
    }

    pub fn stderr_after_kill(mut self) -> String {
        let _ = self.child.kill();
        text(self.child.stderr.take().unwrap())
    }
}

pub fn text(mut stderr: ChildStderr) -> String {
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    text
}
