#!/usr/bin/env bash
# release.sh [DIR]: what a release consists of, in DIR (target/release-VERSION): the source, the binaries as `make install` puts them, and
# the checksums of both. Needs no network. The commit is tagged if the tag is not there yet; a tree with changes is refused.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=hiroma-$version out=$(realpath -m "${1:-target/release-$version}")
if [ -n "$(git status --porcelain)" ]; then
	echo "release: there are changes that are not committed: commit or stash them" >&2
	exit 2
fi
if ! grep -q "^## ${version//./\\.}\b" CHANGELOG.md; then
	echo "release: CHANGELOG.md has no heading \`## $version\`: give what is unreleased that heading" >&2
	exit 2
fi
if git rev-parse -q --verify "refs/tags/v$version" >/dev/null; then
	if [ "$(git rev-parse "v$version^{commit}")" != "$(git rev-parse HEAD)" ]; then
		echo "release: v$version is another commit: raise the version in Cargo.toml, or check that commit out" >&2
		exit 2
	fi
else
	git -c user.name="${GIT_AUTHOR_NAME:-$(git log -1 --format=%an)}" -c user.email="${GIT_AUTHOR_EMAIL:-$(git log -1 --format=%ae)}" \
		tag -a "v$version" -m "Hiroma $version"
fi
# The same files give the same archive: names in order, the commit's time, nobody's numbers.
stamp=$(git log -1 --format=%ct)
pack() { # DIRECTORY NAME ARCHIVE
	tar --sort=name --mtime="@$stamp" --owner=0 --group=0 --numeric-owner -C "$1" -cf - "$2" | gzip -9n >"$3"
}
rm -rf "$out"
mkdir -p "$out"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
binaries=$name-linux-$(uname -m)
git archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$out/$name-source.tar.gz"
# To be unpacked with `tar --strip-components=1 -C /usr/local -xf`.
"${MAKE:-make}" -s install DESTDIR="$stage/root" PREFIX=/usr/local
mv "$stage/root/usr/local" "$stage/$binaries"
install -D -m 644 -t "$stage/$binaries/share/doc/hiroma" README.md LICENSE CHANGELOG.md
pack "$stage" "$binaries" "$out/$binaries.tar.gz"
(cd "$out" && sha256sum -- *.tar.gz >SHA256SUMS)
echo "$out:"
cat "$out/SHA256SUMS"
