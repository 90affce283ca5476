import hashlib, subprocess, sys
data = bytes(range(256)) * (500 << 10)
for _ in range(5):
    print(subprocess.run(["sha256sum"], input=data, capture_output=True, check=True).stdout.split()[0])
    print(subprocess.run([sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()) + 1)"], input=data, capture_output=True, check=True).stdout)
    print(subprocess.run("seq 100000 | sort -R --random-source=/dev/zero | md5sum; exit 3", shell=True, capture_output=True, check=False))
print(hashlib.sha256(data).hexdigest())
