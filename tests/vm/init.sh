#!/bin/busybox sh
# First process of the test machine: brings up just enough of a system, runs the smoke tests, switches off.
/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
export PATH=/hiroma:/test:/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TERM=dumb
mkdir -p /root /scratch /var/tmp
chmod 1777 /var/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
for module in /modules/*.ko; do
	[ -e "$module" ] && insmod "$module"
done
SCRATCH=/tmp
if [ -b /dev/vda ] && mount -t ext4 /dev/vda /scratch; then
	SCRATCH=/scratch
fi
export SCRATCH
echo "VM note scratch directory $SCRATCH ($(stat -f -c %T $SCRATCH))"
echo "VM boot $(uname -r)"
sh /smoke.sh
sync
poweroff -f
