//! Bytes that network file systems have transferred, by mount: `/proc/self/mountstats` (written by
//! NFS; nfs(5), `net/sunrpc/stats.c`, `fs/nfs/super.c`).

use std::fs;

/// One NFS mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkMount {
    /// `server:/export`, and the mount point.
    pub device: String,
    pub place: String,
    /// Bytes received from the server and sent to it.
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Mounts that have such counters.
pub fn parse_mountstats(text: &str) -> Vec<NetworkMount> {
    let mut mounts: Vec<NetworkMount> = Vec::new();
    let mut is_network = false;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("device ") {
            let words: Vec<&str> = rest.split(' ').collect();
            // `DEVICE mounted on PLACE with fstype nfs4 statvers=1.1`
            is_network = words.len() >= 7 && matches!(words[6], "nfs" | "nfs4");
            if is_network {
                mounts.push(NetworkMount {
                    device: words[0].to_owned(),
                    place: words[3].to_owned(),
                    read_bytes: 0,
                    written_bytes: 0,
                });
            }
        } else if let (true, Some(rest), Some(mount)) =
            (is_network, line.trim_start().strip_prefix("bytes:"), mounts.last_mut())
        {
            // Normal reads and writes of programs, direct ones, then bytes received from and sent
            // to the server.
            let numbers: Vec<u64> =
                rest.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect();
            mount.read_bytes = numbers.get(4).copied().unwrap_or(0);
            mount.written_bytes = numbers.get(5).copied().unwrap_or(0);
        }
    }
    mounts
}

/// The NFS mounts that are visible to this process.
pub fn network_mounts() -> Vec<NetworkMount> {
    parse_mountstats(&fs::read_to_string("/proc/self/mountstats").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_network_mounts_report_bytes() {
        let text = "device proc mounted on /proc with fstype proc\n\
                    device 10.0.0.1:/srv mounted on /mnt/a with fstype nfs4 statvers=1.1\n\
                    \topts:\trw,vers=4.2,rsize=1048576\n\tage:\t60\n\
                    \tbytes:\t100 200 3 4 5000 6000 7 8\n\
                    \tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n\
                    device /dev/vda mounted on / with fstype ext4\n\
                    \tbytes:\t9 9 9 9 9 9 9 9\n\
                    device old:/x mounted on /mnt/b with fstype nfs statvers=1.1\n";
        let mounts = parse_mountstats(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            (mounts[0].device.as_str(), mounts[0].place.as_str()),
            ("10.0.0.1:/srv", "/mnt/a")
        );
        assert_eq!((mounts[0].read_bytes, mounts[0].written_bytes), (5000, 6000));
        assert_eq!((mounts[1].device.as_str(), mounts[1].read_bytes), ("old:/x", 0));
        assert!(parse_mountstats("device\nbytes: 1\n\tbytes:\t1").is_empty());
    }
}
