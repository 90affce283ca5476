//! A file over NFS: on a mount that the user names, or from a server of this kernel on this
//! machine.
//!
//! The server is set up without the programs that usually do that (exportfs, mountd, rpc.nfsd),
//! through the same kernel files: its tables are filled in advance with the clients that may mount
//! (`net/sunrpc/cache.c`, `fs/nfsd/export.c`), and it is given a socket that listens on the
//! loopback only (`fs/nfsd/nfsctl.c`, `portlist`). Version 4 only, which needs no rpcbind.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use hiroma_sys::quiet::{affinity, tasks};
use rustix::fs::{Mode, OFlags, fstatfs, open};
use rustix::mount::{MountFlags, mount};

use super::ground::set;
use crate::undo::{Guard, Undo};

/// `statfs(2)`.
const NFS_SUPER_MAGIC: i64 = 0x6969;
/// Expiry time of the server's table entries, in seconds since 1970; the tables are flushed at the
/// end.
const NEVER: u64 = 0x7fff_ffff;
/// Read only, from any port, asynchronous, no subtree check, named by a number
/// (`include/uapi/linux/nfsd/export.h`).
const EXPORT_FLAGS: u32 = 0x1 | 0x2 | 0x10 | 0x400 | 0x2000;
/// A client that gets no answer fails after this number of retries, each after this many tenths of
/// a second: it must not hang.
const PATIENCE: &str = "soft,timeo=100,retrans=5";
const NFSD: &str = "/proc/fs/nfsd";

/// The file, and the changes to undo.
pub struct Source {
    pub file: PathBuf,
    pub bytes: u64,
    /// Description for the report.
    pub what: String,
    guards: Vec<Guard>,
}

impl Drop for Source {
    /// In reverse order: the mount is removed before its server.
    fn drop(&mut self) {
        while let Some(guard) = self.guards.pop() {
            drop(guard);
        }
    }
}

impl Source {
    /// The file that the user named, if it is on NFS; otherwise a file of a server on this machine,
    /// in `dir`.
    pub fn new(
        named: Option<(&Path, u64)>,
        dir: &Path,
        bytes: u64,
        spare: usize,
    ) -> Result<Source> {
        if let Some((file, bytes)) = named {
            if is_nfs(file)? {
                return Ok(Source {
                    file: file.to_owned(),
                    bytes,
                    what: format!("{}, on NFS", file.display()),
                    guards: Vec::new(),
                });
            }
        }
        lacking(&fs::read_to_string("/proc/filesystems").unwrap_or_default())?;
        let mut source = Source {
            file: PathBuf::new(),
            bytes,
            what: "server and client are this kernel's, over the loopback: what is read is in the cache of both".to_owned(),
            guards: Vec::new(),
        };
        source.serve(dir)?;
        // The server stands for another machine, so its work stays on the reader's processor.
        for task in tasks::all().into_iter().filter(|task| task.name == "nfsd") {
            affinity::confine(task.tid, &[spare]).context("confining the NFS server")?;
        }
        Ok(source)
    }

    fn undo(&mut self, undo: Undo) {
        self.guards.push(Guard::new(undo));
    }

    fn serve(&mut self, dir: &Path) -> Result<()> {
        let own = dir.join(format!("hiroma-bench-{}-nfs", std::process::id()));
        let (exported, mounted) = (own.join("exported"), own.join("mounted"));
        self.undo(Undo::DirRemove(own));
        for made in [&exported, &mounted] {
            fs::create_dir_all(made).with_context(|| {
                format!("{}: choose another directory with --dir", made.display())
            })?;
        }
        let file = File::create_new(exported.join("read"))?;
        file.set_len(self.bytes).with_context(|| {
            format!("a file of {} GiB in {}", self.bytes >> 30, exported.display())
        })?;
        // The server accesses the file as user nobody.
        file.set_permissions(Permissions::from_mode(0o644))?;
        self.nfsd_is_there()?;
        let threads = fs::read_to_string(format!("{NFSD}/threads"))
            .context("asking the NFS server of this kernel")?;
        ensure!(
            threads.trim() == "0",
            "an NFS server runs on this machine already; its tables are left alone: name a file on a mount of it with --file"
        );
        let versions = set(&format!("{NFSD}/versions"), "-3 +4 +4.1")?;
        self.guards.push(versions);
        self.export(&exported)?;
        let port = self.listen()?;
        let options =
            format!("addr=127.0.0.1,clientaddr=127.0.0.1,port={port},vers=4.1,sec=sys,{PATIENCE}");
        let options = std::ffi::CString::new(options).context("a zero in options")?;
        self.undo(Undo::Unmount(mounted.clone()));
        mount("127.0.0.1:/", &mounted, "nfs4", MountFlags::RDONLY, options.as_c_str())
            .context("mounting from this kernel's own NFS server")?;
        self.file = mounted.join("read");
        let seen = fs::metadata(&self.file)
            .with_context(|| format!("{}, over NFS", self.file.display()))?
            .len();
        ensure!(
            seen == self.bytes,
            "{} has {seen} bytes over NFS, not {}",
            self.file.display(),
            self.bytes
        );
        Ok(())
    }

    /// Ensures that the server's file system is mounted.
    fn nfsd_is_there(&mut self) -> Result<()> {
        if !Path::new(NFSD).join("threads").exists() {
            self.undo(Undo::Unmount(PathBuf::from(NFSD)));
            mount("nfsd", NFSD, "nfsd", MountFlags::empty(), None)
                .with_context(|| format!("mounting {NFSD}"))?;
        }
        Ok(())
    }

    /// Enters into the server's tables that this machine may read `exported`, as the root of the
    /// version 4 export tree.
    fn export(&mut self, exported: &Path) -> Result<()> {
        let tables = [
            ("auth.unix.ip", format!("nfsd 127.0.0.1 {NEVER} bench")),
            ("auth.unix.gid", format!("0 {NEVER} 0")),
            (
                "nfsd.export",
                format!("bench {} {NEVER} {EXPORT_FLAGS} 65534 65534 0", quoted(exported)),
            ),
            ("nfsd.fh", format!("bench 1 \\x00000000 {NEVER} {}", quoted(exported))),
        ];
        for (table, line) in tables {
            let table = PathBuf::from("/proc/net/rpc").join(table);
            // Any number flushes a table.
            self.undo(Undo::FileWrite(table.join("flush"), format!("{NEVER}\n")));
            fs::write(table.join("channel"), line + "\n")
                .with_context(|| format!("filling {}", table.display()))?;
        }
        Ok(())
    }

    /// Starts the server on a free port of the loopback.
    fn listen(&mut self) -> Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("a port of 127.0.0.1 for the NFS server")?;
        let port = listener.local_addr()?.port();
        self.undo(Undo::FileWrite(PathBuf::from(NFSD).join("threads"), "0\n".to_owned()));
        // The kernel keeps a reference to the socket.
        fs::write(format!("{NFSD}/portlist"), format!("{}\n", listener.as_raw_fd()))
            .context("giving the NFS server a socket")?;
        fs::write(format!("{NFSD}/threads"), "2\n").context("starting the NFS server")?;
        // No client has state to reclaim from a server that has just started; older kernels have no
        // such file.
        let _ = fs::write(format!("{NFSD}/v4_end_grace"), "Y\n");
        Ok(port)
    }
}

fn is_nfs(file: &Path) -> Result<bool> {
    let found = open(file, OFlags::PATH, Mode::empty()).and_then(|file| fstatfs(&file));
    Ok(found.with_context(|| format!("{}", file.display()))?.f_type as i64 == NFS_SUPER_MAGIC)
}

/// Quotes a path as the tables require: spaces and backslashes as octal numbers (`qword_get`).
fn quoted(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let byte = |&byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}"),
        _ => char::from(byte).to_string(),
    };
    path.as_os_str().as_bytes().iter().map(byte).collect()
}

/// Fails with what this kernel lacks, according to `/proc/filesystems`.
fn lacking(filesystems: &str) -> Result<()> {
    let has =
        |name: &str| filesystems.lines().any(|line| line.split_whitespace().last() == Some(name));
    let lacking = match (has("nfs4"), has("nfsd")) {
        (true, true) => return Ok(()),
        (true, false) => "no NFS server",
        (false, true) => "no NFS client",
        (false, false) => "neither an NFS client nor a server",
    };
    anyhow::bail!(
        "this kernel has {lacking} (/proc/filesystems); `modprobe nfsd; modprobe nfsv4` loads them where there are some, or name a file on a mount with --file"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requirements_are_reported() {
        for (text, expected) in [
            ("nodev\tproc\n\text4\n", "neither"),
            ("nodev\tnfs4\n", "no NFS server"),
            ("nodev\tnfsd\n", "no NFS client"),
        ] {
            let told = lacking(text).unwrap_err().to_string();
            assert!(told.contains(expected) && told.contains("--file"), "{told}");
        }
        lacking("nodev\tnfs\nnodev\tnfs4\nnodev\tnfsd\n").unwrap();
    }

    #[test]
    fn export_paths_are_escaped() {
        assert_eq!(quoted(Path::new("/var/tmp/a b\\c")), "/var/tmp/a\\040b\\134c");
    }

    #[test]
    fn a_local_file_is_not_on_nfs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_nfs(file.path()).unwrap());
        let gone = is_nfs(Path::new("/nonexistent/file")).unwrap_err();
        assert!(format!("{gone:#}").contains("/nonexistent/file"));
    }
}
