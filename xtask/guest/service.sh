# Under systemd, in a guest: what the package is for.
exec 2>&1
trap 'echo "$?" >/share/status' EXIT
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
fail() {
    echo "systemd: FAILED: $*"
    systemctl --no-pager --full status ninefold.service ninefold.socket 'ninefold-mount@*' || true
    journalctl --no-pager -o short-monotonic -n 40 || true
    exit 1
}
say() {
    echo "systemd: $* ($(cut -d. -f1 /proc/uptime) s)"
}
pid() {
    systemctl show --value -p MainPID ninefold.service
}
# The first words of a line of the journal, with its level.
journal() {
    journalctl --no-pager -u ninefold.service -o json | grep -F "$1" | grep -q "\"PRIORITY\":\"$2\""
}
say "up: $(systemctl --version | head -1)"
rm -f /var/lib/man-db/auto-update
dpkg --force-unsafe-io --install /share/package.deb >/share/dpkg 2>&1 || { cat /share/dpkg; fail "dpkg --install"; }
systemctl is-active ninefold.socket ninefold.service || fail "an installed service does not run"
[ "$(ps -o user= -p "$(pid)")" = ninefold ] || fail "it runs as somebody else"
ninefold ls /srv >/dev/null || fail "root does not reach it"
ninefold ls 9p://127.0.0.1:5640/ | grep -q srv || fail "the loopback does not reach it"
systemctl show -p StatusText ninefold.service | grep -q 'serves /etc/ninefold/home.ns' || fail "it says no status"
journal 'attached' 6 || fail "the journal has not its levels"
journalctl --no-pager -u ninefold.service -o cat | grep -E '^[0-9]{4}-' && fail "times stand twice"
token=$(cat /var/lib/ninefold/token)
journalctl --no-pager -u ninefold.service -o cat | grep -F "$token" && fail "the token is in the journal"
[ "$(stat -c %a /var/lib/ninefold/token)" = 600 ] || fail "others read the token"
echo written >/tmp/text
mkdir -p /srv/open && chown ninefold /srv/open
ninefold write --token "$token" --create 9p://127.0.0.1:5640/srv/open/text </tmp/text || fail "the token does not write"
say "installed, and serves"

# A client stays while the name space changes.
mkdir -p /n/hand
ninefold mount /run/ninefold.sock /n/hand
exec 5</n/hand/srv/open/text
was=$(pid)
echo 'mount ram: /fresh' >>/etc/ninefold/home.ns
systemctl reload ninefold.service || fail "reload"
[ "$(pid)" = "$was" ] || fail "a reload is another process"
ninefold ls / | grep -q fresh || fail "the new tree is not there"
[ "$(cat <&5)" = written ] || fail "an open file has not lived on"
echo 'moun ram: /wrong' >>/etc/ninefold/home.ns
systemctl reload ninefold.service && fail "a wrong file reloads"
journalctl --no-pager -u ninefold.service -o cat | grep -q '/etc/ninefold/home.ns:[0-9:]*: `moun` is not known' ||
    fail "what is wrong is not said"
ninefold ls / | grep -q fresh || fail "the old tree is gone"
sed -i /moun/d /etc/ninefold/home.ns
printf 'mount disk:/srv /srv\nmount ram: /fresh\n' >>/etc/ninefold/home.ns
say "read again"

# A mount of systemd's, and one of mount(8).
mkdir -p /etc/ninefold/mount /n/lab /n/other
echo 'SERVER=unix:/run/ninefold.sock' >/etc/ninefold/mount/n-lab
systemctl start ninefold-mount@n-lab.service || fail "ninefold-mount@"
[ "$(cat /n/lab/srv/open/text)" = written ] || fail "the unit's mount shows nothing"
mount -t fuse.ninefold unix:/run/ninefold.sock /n/other || fail "mount -t fuse.ninefold"
[ "$(cat /n/other/srv/open/text)" = written ] || fail "mount(8)'s mount shows nothing"
say "mounted three times"

# An upgrade: who dials meanwhile waits, and mounts go on.
(while [ ! -e /tmp/enough ]; do ninefold ls / >/dev/null || echo refused >>/tmp/refused; done) &
dialler=$!
(while [ ! -e /tmp/enough ]; do cat /n/lab/srv/open/text >/dev/null || echo failed >>/tmp/refused; done) &
reader=$!
dpkg --force-unsafe-io --force-confold --install /share/package.deb >/share/dpkg 2>&1 || { cat /share/dpkg; fail "upgrade"; }
[ "$(pid)" != "$was" ] || fail "an upgrade has not restarted the service"
touch /tmp/enough
wait "$dialler" "$reader"
[ ! -e /tmp/refused ] || fail "refused while it was upgraded: $(sort /tmp/refused | uniq -c)"
for dir in /n/hand /n/lab /n/other; do
    [ "$(cat "$dir/srv/open/text")" = written ] || fail "$dir has not outlived the upgrade"
done
say "upgraded"

# A service that hangs is noticed: it says a sign of life twice in WatchdogSec=.
mkdir -p /run/systemd/system/ninefold.service.d
printf '[Service]\nWatchdogSec=4\nRestartSec=0\n' >/run/systemd/system/ninefold.service.d/watch.conf
systemctl daemon-reload
systemctl restart ninefold.service
was=$(pid)
kill -STOP "$was"
[ "$(cat /n/lab/srv/open/text)" = written ] || fail "who asks a service that hangs has no answer from the next one"
[ "$(pid)" != "$was" ] || fail "a service that hangs is left alone"
say "watched"

# Removed while it is mounted: mounts of units end, those of hands go on, without a server.
dpkg --force-unsafe-io --remove ninefold >/share/dpkg 2>&1 || { cat /share/dpkg; fail "dpkg --remove"; }
systemctl is-active ninefold.service ninefold.socket && fail "what was removed runs"
[ ! -e /run/ninefold.sock ] || fail "its socket is there"
grep -q ' /n/lab fuse' /proc/mounts && fail "a unit's mount has outlived the package"
grep -q " /n/hand fuse" /proc/mounts || fail "a mount made by hand has ended"
exec 5<&-
umount -f /n/hand && umount -f /n/other || fail "umount -f"
say "removed"
dpkg --force-unsafe-io --purge ninefold >/share/dpkg 2>&1 || { cat /share/dpkg; fail "dpkg --purge"; }
getent passwd ninefold && fail "its user is there"
[ ! -e /var/lib/ninefold ] && [ ! -e /etc/ninefold ] || fail "its state is there"
systemctl list-unit-files --no-pager | grep ninefold && fail "its units are there"
timeout 60 sh -c 'while pgrep -x ninefold >/dev/null; do :; done' || fail "a process of it is there"
say "purged"
