# shellcheck shell=bash
# For the scripts beside it: Maven, bounded, and Spark's class path.

jvm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Where cargo has put libhiroma_jvm.so.
native=${HIROMA_NATIVE_DIR:-$jvm/../target/release}
export MAVEN_OPTS="${MAVEN_OPTS:-} -Xmx512m"

# lacking: what is missing for the JVM part, or nothing.
lacking() {
	command -v mvn >/dev/null 2>&1 || echo "Maven (sudo apt-get install maven)"
	command -v javac >/dev/null 2>&1 || echo "a JDK 17 or newer (sudo apt-get install default-jdk-headless)"
	[ -e "$native/libhiroma_jvm.so" ] || echo "$native/libhiroma_jvm.so (make)"
}

# maven SECONDS ARGUMENTS...: with limits for servers that do not answer.
maven() {
	local limit=$1
	shift
	(cd "$jvm/hiroma-spark" && timeout -s KILL "$limit" mvn -B -Dmaven.wagon.http.readTimeout=20000 -Dmaven.wagon.rto=20000 \
		-Dstyle.color=never "-Dhiroma.native.dir=$(realpath "$native")" "$@")
}

# What Maven says when it cannot reach its repository.
# shellcheck disable=SC2034  # For those who read this file.
unreachable='Could not transfer|Unknown host|Connection refused|timed out|Read timed out|has not been downloaded from it before|Network is unreachable'
