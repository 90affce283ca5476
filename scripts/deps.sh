#!/usr/bin/env bash
# Installs what is missing, and only that: `deps.sh build`, `deps.sh test`, `deps.sh vm`, `deps.sh jvm`, or several. For Debian and Ubuntu; elsewhere it says
# what is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

rust_needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

say() { echo "deps: $*" >&2; }

# newer_or_same HAVE WANT
newer_or_same() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# The package is asked for only if the command is not there: people have compilers and Pythons from elsewhere.
missing=()
need() { # COMMAND PACKAGE
	command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

has_package() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo "$@"
	else
		say "need root for: $*"
		exit 1
	fi
}

rust_ok() {
	command -v cargo >/dev/null 2>&1 || return 1
	local have
	have=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
	[ -n "$have" ] && newer_or_same "$have" "$rust_needed"
}

install_missing() {
	[ ${#missing[@]} = 0 ] && return
	if ! command -v apt-get >/dev/null 2>&1; then
		say "this is no Debian or Ubuntu; please install yourself: ${missing[*]}"
		exit 1
	fi
	say "installing ${missing[*]}"
	as_root apt-get update -q
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
	missing=()
}

install_rust() {
	rust_ok && return
	local packaged=""
	if command -v apt-cache >/dev/null 2>&1; then
		packaged=$(apt-cache policy rustc 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
	fi
	if [ -n "$packaged" ] && newer_or_same "$packaged" "$rust_needed"; then
		missing+=(rustc cargo rust-clippy rustfmt)
		install_missing
	elif command -v rustup >/dev/null 2>&1; then
		say "the Rust toolchain is older than $rust_needed: updating it with rustup"
		rustup toolchain install stable --profile minimal --component clippy --component rustfmt
		rustup default stable
	else
		need curl curl
		[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
		install_missing
		say "installing Rust with its official installer (https://rustup.rs), for this user only"
		curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --no-modify-path --profile minimal --component clippy,rustfmt
	fi
	rust_ok || {
		say "Rust $rust_needed or newer is needed and could not be installed; see https://rustup.rs"
		exit 1
	}
}

for part in "$@"; do
	case $part in
	build)
		need cc gcc
		need ld binutils
		# The BPF program, and libbpf, which loads it.
		need clang clang
		need make make
		need pkg-config pkg-config
		printf '#include <libelf.h>\n#include <zlib.h>\n' | cc -E -x c - >/dev/null 2>&1 || missing+=(libelf-dev zlib1g-dev)
		# The compiler can be there without the C library's headers.
		printf '#include <stdio.h>\n' | cc -E -x c - >/dev/null 2>&1 || missing+=(gcc libc6-dev)
		install_missing
		install_rust
		;;
	test)
		need time time
		need pkg-config pkg-config
		need qemu-system-x86_64 qemu-system-x86
		need busybox busybox-static
		need cpio cpio
		has_package xfsprogs || missing+=(xfsprogs)
		has_package btrfs-progs || missing+=(btrfs-progs)
		# One package a line; comments allowed.
		while read -r package; do
			case $package in
			'' | '#'*) continue ;;
			g++) need g++ g++ ;;
			python3) need python3 python3 ;;
			python3-numpy) python3 -c 'import numpy' >/dev/null 2>&1 || missing+=("$package") ;;
			chromium) need chromium "$package" ;;
			etcd-server) need etcd "$package" ;;
			memcached) need memcached "$package" ;;
			shellcheck) need shellcheck "$package" ;;
			redis-server) need redis-server "$package" ;;
			valgrind) need valgrind "$package" ;;
			xz-utils) need xz "$package" ;;
			*) has_package "$package" || missing+=("$package") ;;
			esac
		done < <(cat tests/e2e/packages.txt 2>/dev/null)
		install_missing
		;;
	vm)
		# The machines, and kernels that have to be built for them (tests/vm/source.py).
		need qemu-system-x86_64 qemu-system-x86
		need busybox busybox-static
		for tool in flex bison bc make; do need $tool $tool; done
		need xz xz-utils
		install_missing
		;;
	jvm)
		need javac default-jdk-headless
		need mvn maven
		install_missing
		;;
	*)
		say "unknown part: $part"
		exit 2
		;;
	esac
done
