#!/usr/bin/env bash
# Builds Debian's memcached with our patch into build/memcached: `memcached`, and `memcached-debug` with its assertions.
# Takes the source package from Debian's archive; nothing of the machine's apt configuration is changed. With HIROMA_LIBDIR=DIR the
# library of that directory is used instead of a release build.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
root=$(cd ../.. && pwd)
work=$root/build/memcached
export PATH="$HOME/.cargo/bin:$PATH"

say() { echo "memcached: $*" >&2; }

missing=()
for pair in apt-get:apt dpkg-source:dpkg-dev make:make cc:gcc patch:patch; do
	command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair##*:}")
done
printf '#include <event.h>\n' | cc -E -x c - >/dev/null 2>&1 || missing+=(libevent-dev)
if [ ${#missing[@]} != 0 ]; then
	say "this needs Debian or Ubuntu, and: sudo apt-get install ${missing[*]}"
	exit 2
fi

# A source list of our own, for the release that is installed here.
fetch() {
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
	# shellcheck disable=SC1091
	. /etc/os-release
	local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	if [ "${ID:-}" = ubuntu ]; then
		printf 'deb-src http://archive.ubuntu.com/ubuntu %s main universe\n' "$VERSION_CODENAME" >"$work/apt/sources.list"
	else
		local signed=""
		[ -e "$keyring" ] && signed="[signed-by=$keyring] "
		printf 'deb-src %shttp://deb.debian.org/debian %s main\ndeb-src %shttp://deb.debian.org/debian-security %s-security main\n' \
			"$signed" "$VERSION_CODENAME" "$signed" "$VERSION_CODENAME" >"$work/apt/sources.list"
	fi
	local apt=(apt-get -q -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=)
	say "fetching Debian's source package"
	"${apt[@]}" update >"$work/apt/log" 2>&1 && (cd "$work" && "${apt[@]}" source memcached >>"$work/apt/log" 2>&1) || {
		say "cannot fetch it (no network?); see $work/apt/log"
		exit 3
	}
}

mkdir -p "$work"
source_dir() { find "$work" -maxdepth 1 -type d -name 'memcached-[0-9]*' | sort | tail -n 1; }
[ -n "$(source_dir)" ] || fetch
src=$(source_dir)
say "source: $src"

lib=${HIROMA_LIBDIR:-}
if [ -z "$lib" ]; then
	(cd "$root" && cargo build -q --release -p hiroma-capi)
	lib=${CARGO_TARGET_DIR:-$root/target}/release
fi
mkdir -p "$work/lib"
ln -sf "$(cd "$lib" && pwd)/libhiroma.so" "$work/lib/libhiroma.so"
ln -sf libhiroma.so "$work/lib/libhiroma.so.0"

# Patched anew whenever the patch has changed.
if ! cmp -s "$here/hiroma.patch" "$src/.hiroma.patch"; then
	if [ -e "$src/.hiroma.patch" ]; then
		patch -s -R -p1 -d "$src" <"$src/.hiroma.patch"
		rm "$src/.hiroma.patch"
	fi
	patch -s -p1 -d "$src" <"$here/hiroma.patch"
	cp "$here/hiroma.patch" "$src/.hiroma.patch"
fi

cd "$src"
[ -e Makefile ] || ./configure -q CFLAGS="-O2 -g" CPPFLAGS="-DHAVE_HIROMA -I$root/include" \
	LDFLAGS="-L$work/lib -Wl,-rpath,$work/lib" LIBS="-lhiroma"
# Nothing is generated anew: the machine need not have automake.
make -s -j"$(nproc)" ACLOCAL=: AUTOCONF=: AUTOMAKE=: AUTOHEADER=: memcached memcached-debug sizes testapp timedrun >"$work/make.log" 2>&1 || {
	tail -n 30 "$work/make.log" >&2
	say "make failed; see $work/make.log"
	exit 1
}
ln -sf "$src/memcached" "$src/memcached-debug" "$work/"
say "built: $work/memcached (-o hiroma)"
