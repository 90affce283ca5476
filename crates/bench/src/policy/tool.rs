//! The tools that observe every access of a program: our own tool for valgrind, compiled where it
//! is used, and valgrind's `lackey`.

use std::fs;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use hiroma_far_lab::record::Recorder;
use hiroma_far_lab::space::Call;

/// A tool that observes accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Tool {
    /// Our own tool, compiled with the headers and libraries of valgrind: 20 to 40 times as slow as
    /// natively
    #[default]
    Pages,
    /// valgrind's lackey, which writes every access as text: 1,000 times as slow
    Lackey,
}

const SOURCE: &str = include_str!("pagetrace.c");
const NAME: &str = "pagetrace-amd64-linux";
/// Directories where distributions install the parts of valgrind.
const TOOL_DIRS: [&str; 3] =
    ["/usr/libexec/valgrind", "/usr/lib/x86_64-linux-gnu/valgrind", "/usr/lib/valgrind"];
const LIBRARY_DIRS: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/valgrind", "/usr/lib64/valgrind", "/usr/lib/valgrind"];
/// The word in the tool's output that announces a system call.
const CALL: u64 = u64::MAX;

/// Why nothing can be recorded here.
pub fn obstacle() -> Option<String> {
    let version = Command::new("valgrind").arg("--version").stderr(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => None,
        _ => Some("valgrind is not installed (apt-get install valgrind)".to_owned()),
    }
}

/// Makes a directory with everything that valgrind needs to run our tool.
pub fn build(dir: &Path) -> Result<PathBuf> {
    let home = dir.join("valgrind");
    fs::create_dir_all(&home)?;
    let first = |dirs: &[&'static str], file: &str| {
        dirs.iter().copied().find(|dir| Path::new(dir).join(file).exists())
    };
    let tools = first(&TOOL_DIRS, "lackey-amd64-linux")
        .context("valgrind's tools are not where they usually are")?;
    let libraries = first(&LIBRARY_DIRS, "libcoregrind-amd64-linux.a").context(
        "valgrind's libraries for tools are missing (in Debian they are part of its package)",
    )?;
    for entry in fs::read_dir(tools)? {
        let entry = entry?;
        let link = home.join(entry.file_name());
        if !link.exists() {
            std::os::unix::fs::symlink(entry.path(), link)?;
        }
    }
    let (source, object, tool) =
        (home.join("pagetrace.c"), home.join("pagetrace.o"), home.join(NAME));
    fs::write(&source, SOURCE)?;
    let platform =
        ["-DVGA_amd64=1", "-DVGO_linux=1", "-DVGP_amd64_linux=1", "-DVGPV_amd64_linux_vanilla=1"];
    let mut compile = Command::new("cc");
    compile.args([
        "-O2",
        "-std=gnu99",
        "-fno-stack-protector",
        "-fno-strict-aliasing",
        "-fno-builtin",
        "-fno-pie",
    ]);
    compile
        .args(platform)
        .args(["-I/usr/include/valgrind", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object);
    succeed(&mut compile, "compiling the tool for valgrind")?;
    let mut link = Command::new("cc");
    link.args(["-no-pie", "-static", "-nodefaultlibs", "-nostartfiles", "-u", "_start"]);
    link.args(["-Wl,--build-id=none", "-Wl,-Ttext-segment=0x58000000"]).arg(&object);
    link.args(
        ["libcoregrind", "libvex", "libgcc-sup"]
            .map(|name| format!("{libraries}/{name}-amd64-linux.a")),
    );
    link.arg("-lgcc").arg("-o").arg(&tool);
    succeed(&mut link, "linking the tool for valgrind")?;
    Ok(home)
}

fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| what.to_owned())?;
    if !output.status.success() {
        bail!("{what} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Runs a program under a tool, and passes its actions to `recorder`. `home`: the result of
/// `build`.
pub fn watch(
    tool: Tool,
    home: Option<&Path>,
    argv: &[String],
    recorder: &mut Recorder,
) -> Result<()> {
    // Not closed on exec: valgrind writes to it.
    let (read_end, write_end) = rustix::pipe::pipe().context("making a pipe")?;
    let _ = rustix::pipe::fcntl_setpipe_size(&write_end, 1 << 20);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&write_end);
    let mut command = Command::new("valgrind");
    match (tool, home) {
        (Tool::Pages, Some(home)) => {
            command.env("VALGRIND_LIB", home).args([
                "-q",
                "--tool=pagetrace",
                &format!("--pages-fd={fd}"),
            ]);
        }
        _ => {
            command.args([
                "--tool=lackey",
                "--trace-mem=yes",
                "--trace-syscalls=yes",
                "--child-silent-after-fork=yes",
            ]);
            command.arg(format!("--log-fd={fd}"));
        }
    }
    command.arg("--").args(argv).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().context("starting valgrind")?;
    drop(write_end);
    let stream = fs::File::from(read_end);
    let read = if tool == Tool::Pages {
        read_words(stream, recorder)
    } else {
        read_text(stream, recorder)
    };
    let status = child.wait()?;
    read.context("reading from valgrind")?;
    if !status.success() {
        bail!("{} under valgrind ended with {status}", argv.join(" "));
    }
    Ok(())
}

/// Reads the output of our tool; its source describes the format.
fn read_words(mut stream: impl Read, recorder: &mut Recorder) -> std::io::Result<()> {
    let mut buffer = vec![0u8; 1 << 20];
    let mut kept = 0;
    // Words of the call that is being read.
    let mut call: Vec<u64> = Vec::with_capacity(8);
    loop {
        let read = stream.read(&mut buffer[kept..])?;
        if read == 0 {
            return Ok(());
        }
        let filled = kept + read;
        let whole = filled / 8 * 8;
        for bytes in buffer[..whole].chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            let word = u64::from_le_bytes(word);
            if call.is_empty() && word != CALL {
                recorder.touch(word >> 1, word & 1 == 1);
                continue;
            }
            call.push(word);
            if let [_, number, a, b, c, d, e, result] = call[..] {
                if number == u64::MAX {
                    recorder.references(a);
                } else {
                    recorder.call(&Call { number, args: [a, b, c, d, e], result });
                }
                call.clear();
            }
        }
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
}

/// Reads the output of lackey: ` L 1ffeffe7e0,8`, and the lines of `--trace-syscalls`.
fn read_text(stream: impl Read, recorder: &mut Recorder) -> std::io::Result<()> {
    let mut lines = std::io::BufReader::with_capacity(1 << 20, stream);
    let mut line = Vec::new();
    let mut count = 0;
    while {
        line.clear();
        lines.read_until(b'\n', &mut line)? > 0
    } {
        match line.as_slice() {
            [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => {
                let Some((addr, size)) = access(rest) else { continue };
                count += if *kind == b'M' { 2 } else { 1 };
                let (first, last) = (addr >> 12, (addr + size.max(1) - 1) >> 12);
                for page in first..=last {
                    if *kind != b'S' {
                        recorder.touch(page, false);
                    }
                    if *kind != b'L' {
                        recorder.touch(page, true);
                    }
                }
            }
            [b'I', ..] => {}
            other => {
                if let Some(call) = parse_call(&String::from_utf8_lossy(other)) {
                    recorder.call(&call);
                }
            }
        }
    }
    recorder.references(count);
    Ok(())
}

/// Parses address and size, as in `1ffeffe7e0,8`.
fn access(text: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    let (addr, size) = text.split_once(',')?;
    Some((u64::from_str_radix(addr, 16).ok()?, size.parse().ok()?))
}

/// Parses `SYSCALL[7,1](9) sys_mmap ( 0x0, 8192, 3, 34, 4294967295, 0 ) --> [pre-success]
/// Success(0x4c3e000)`.
fn parse_call(line: &str) -> Option<Call> {
    let (_, rest) = line.split_once("SYSCALL[")?;
    let (number, rest) = rest.split_once("](")?.1.split_once(')')?;
    let (_, result) = rest.rsplit_once("Success(")?;
    let value = |text: &str| -> Option<u64> {
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse::<i128>().ok().map(|value| value as u64),
        }
    };
    let arguments = rest
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .map_or("", |(inside, _)| inside);
    let mut args = [0; 5];
    for (place, text) in args.iter_mut().zip(arguments.split(',')) {
        *place = value(text).unwrap_or(0);
    }
    Some(Call {
        number: number.trim().parse().ok()?,
        args,
        result: value(result.split(')').next()?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lackey_output_is_parsed() {
        assert_eq!(access(b"1ffeffe7e0,8\n"), Some((0x1f_feff_e7e0, 8)));
        let line = "SYSCALL[7,1](9) sys_mmap ( 0x0, 8192, 3, 34, 4294967295, 0 ) --> [pre-success] Success(0x4c3e000)";
        assert_eq!(
            parse_call(line),
            Some(Call { number: 9, args: [0, 8192, 3, 34, 4_294_967_295], result: 0x4c3_e000 })
        );
        let line = "SYSCALL[7,1](11) sys_munmap ( 0x4870000, 8192 )[sync] --> Success(0x0)";
        assert_eq!(
            parse_call(line),
            Some(Call { number: 11, args: [0x487_0000, 8192, 0, 0, 0], result: 0 })
        );
        assert_eq!(
            parse_call(
                "SYSCALL[7,1](21) sys_access ( 0x401d000(/etc/x), 4 )[sync] --> Failure(0x2)"
            ),
            None
        );
    }
}
