set -eu
base=$1 tree=$2 source=$3 built=$4 program=$5 test=$6 inside=$7

# In memory, and in this mount namespace alone.
mkdir "$base/ram"
mount -t tmpfs -o mode=0755 none "$base/ram"
cd "$base/ram"
mkdir upper work root
cp -a "$tree/." upper
mount -t overlay -o "lowerdir=/,upperdir=upper,workdir=work" none root

# Nothing of what the machine itself starts.
rm -rf root/etc/systemd/system
# Other tests work beneath the machine's /run meanwhile: what cannot be removed is hidden by the container's own.
rm -rf root/run 2>/dev/null || true
mkdir -p root/etc/systemd/system root/run
: >root/etc/fstab
mkdir -p root/etc/systemd
printf '[Manager]\nDefaultTimeoutStopSec=5s\n' >root/etc/systemd/system.conf
: >"$base/said"
cat >root/etc/systemd/system/wharfline-test.service <<UNIT
[Unit]
Description=The test
DefaultDependencies=no
Requires=dbus.service
After=dbus.service
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=$inside=1 "PATH=$PATH" RUST_BACKTRACE=0 HOME=/root
ExecStart="$program" --exact "$test" --nocapture --test-threads=1
StandardOutput=append:/said
StandardError=append:/said
UNIT
# What is set beneath /proc/sys is the machine's, not the container's.
ln -s /dev/null root/etc/systemd/system/systemd-sysctl.service
# The system bus, which is root's here: nobody has made it a user.
cat >root/etc/systemd/system/dbus.socket <<UNIT
[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
UNIT
cat >root/etc/systemd/system/dbus.service <<UNIT
[Unit]
DefaultDependencies=no
Requires=dbus.socket
FailureAction=exit-force
[Service]
Type=notify
NotifyAccess=main
ExecStart=/usr/bin/dbus-daemon --config-file=/etc/bus.conf --address=systemd: --nofork --nopidfile
StandardError=append:/said
UNIT
cat >root/etc/bus.conf <<CONF
<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
  </policy>
</busconfig>
CONF
# The trees of single controllers are mounted for reading alone, and /dev has almost nothing.
cat >root/first <<'FIRST'
#!/bin/sh
for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -e "$tree/cgroup.procs" ] || mount -o remount,bind,rw "$tree"
done
mount -o remount,bind,rw /proc/sys
mount -t devtmpfs none /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 none /dev/pts
mount -t tmpfs none /dev/shm
exec /usr/lib/systemd/systemd --unit=wharfline-test.service
FIRST
chmod 0755 root/first

libraries=$tree/usr/lib/systemd
for folder in "$tree"/usr/lib/*-linux-gnu "$tree"/usr/lib/*-linux-gnu/systemd; do libraries=$libraries:$folder; done

# Its cgroups are beneath some of its own, in every tree: what it sees as their root.
trees=
for tree_of in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -e "$tree_of/cgroup.procs" ] && [ "${tree_of##*/}" != cpuset ] || continue
    for controller in cpu memory pids; do
        echo "+$controller" 2>/dev/null >"$tree_of/cgroup.subtree_control" || true
    done
    mkdir "$tree_of/${base##*/}"
    trees="$trees $tree_of/${base##*/}"
done

# It neither asks a manager of this machine nor filters system calls. It ends with the test: that holds the other end of
# the standard input.
exec 3<&0
env SYSTEMD_SECCOMP=0 LD_LIBRARY_PATH="$libraries" /bin/sh -c '
    trees=$1
    shift
    for tree in $trees; do echo $$ >"$tree/cgroup.procs"; done
    exec "$@"
' sh "$trees" timeout --kill-after=10 300 "$tree/usr/bin/systemd-nspawn" --quiet \
    --directory=root --register=no --keep-unit --capability=all --console=pipe --link-journal=no \
    --bind-ro="$source" --bind-ro="$built" --bind="$base/said:/said" /first </dev/null 3<&- &
container=$!
(
    cat <&3
    kill "$container"
) >/dev/null 2>&1 &
watcher=$!
code=0
wait "$container" || code=$?
kill "$watcher" 2>/dev/null || true
for tree_of in $trees; do find "$tree_of" -depth -type d -exec rmdir {} \; ; done
exit $code
