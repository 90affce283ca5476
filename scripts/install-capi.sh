#!/usr/bin/env bash
# install-capi.sh RELEASE_DIR DESTDIR PREFIX: the C library, its header, its pkg-config file and its man pages.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$1 destdir=$2 prefix=$3
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
major=${version%%.*}

install -m 755 "$release/libhiroma.so" "$destdir$prefix/lib/libhiroma.so.$version"
ln -sf "libhiroma.so.$version" "$destdir$prefix/lib/libhiroma.so.$major"
ln -sf "libhiroma.so.$major" "$destdir$prefix/lib/libhiroma.so"
install -m 644 include/hiroma.h include/hps.h "$destdir$prefix/include/"
sed -e "s|@PREFIX@|$prefix|g" -e "s|@LIBDIR@|$prefix/lib|g" -e "s|@VERSION@|$version|g" crates/capi/hiroma.pc.in >"$destdir$prefix/lib/pkgconfig/hiroma.pc"
for page in docs/man/*.3; do
	[ -e "$page" ] && install -m 644 "$page" "$destdir$prefix/share/man/man3/"
done
if [ -z "$destdir" ] && [ "$(id -u)" = 0 ]; then
	ldconfig || true
fi
