"""A small kernel of one's own, from a package of the kernel's source."""

import os
import pathlib
import shutil
import subprocess

CONFIG = pathlib.Path(__file__).resolve().parent / "idle.config"
# What building needs, and the packages that have it.
COMMANDS = {"gcc": "gcc", "make": "make", "flex": "flex", "bison": "bison", "bc": "bc", "xz": "xz-utils"}


def missing():
    """The packages without which no kernel can be built here."""
    lacking = [package for name, package in COMMANDS.items() if shutil.which(name) is None]
    header = subprocess.run(["cc", "-E", "-x", "c", "-"], input="#include <libelf.h>\n", capture_output=True, text=True)
    return lacking + (["libelf-dev"] if header.returncode else [])


def build(root):
    """Builds the source that a package has put below `root`, as CONFIG says, into `root`/boot; the source is removed afterwards."""
    archive = next((root / "usr" / "src").glob("linux-source-*.tar.xz"))
    work = root / "build"
    work.mkdir()

    def run(*args):
        done = subprocess.run([str(arg) for arg in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, args))} failed:\n{done.stdout[-4000:]}")
        return done.stdout

    run("tar", "-xf", archive, "-C", work)
    tree = next(work.iterdir())
    run("make", "-s", "-C", tree, "tinyconfig")
    wanted = [line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_")]
    with open(tree / ".config", "a") as file:
        file.write("\n".join(wanted) + "\n")
    run("make", "-s", "-C", tree, "olddefconfig")
    lost = set(wanted) - set((tree / ".config").read_text().splitlines())
    if lost:
        raise SystemExit(f"this kernel does not take {', '.join(sorted(lost))} of {CONFIG}")
    run("make", "-s", "-C", tree, f"-j{os.cpu_count()}", "bzImage")
    version = run("make", "-s", "-C", tree, "kernelrelease").strip()
    (root / "boot").mkdir(exist_ok=True)
    shutil.copy(tree / "arch/x86/boot/bzImage", root / "boot" / f"vmlinuz-{version}")
    shutil.rmtree(work)
    archive.unlink()
