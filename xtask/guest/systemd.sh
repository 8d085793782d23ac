# In a guest: Debian's systemd as process 1 of a name space of processes, which starts service.sh and nothing else of
# this host's. Ends with its status.
set -e
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || true
modprobe fuse
# It may keep services of packages from starting, on a host that is a container; and others' units are not our trial.
rm -f /usr/sbin/policy-rc.d /etc/modules-load.d/* /lib/modules-load.d/* /usr/lib/modules-load.d/*
rm -f /etc/systemd/system/*.wants/*
mkdir -p /run/systemd/system
cat >/run/systemd/system/trial.service <<END
[Unit]
Requires=basic.target
After=basic.target
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
ExecStart=/bin/bash /share/service.sh
StandardOutput=append:/share/said
StandardError=inherit
TimeoutStartSec=infinity
END
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket \
    systemd-tmpfiles-setup.service systemd-sysctl.service systemd-remount-fs.service systemd-random-seed.service \
    keyboard-setup.service apparmor.service systemd-update-utmp.service systemd-timesyncd.service; do
    ln -s /dev/null "/run/systemd/system/$unit"
done
echo >/etc/fstab
# What is served is on a file system of its own, not on that which keeps this host's files as they are.
mount -t tmpfs -o mode=755 srv /srv
touch /share/said
echo 1 >/share/status
unshare --pid --fork --mount --uts --ipc --cgroup --kill-child sh -c '
    mount -t proc proc /proc
    exec env -i container=guest /lib/systemd/systemd --system --unit=trial.service --show-status=no --log-target=journal
' || true
cat /share/said
exit "$(cat /share/status)"
