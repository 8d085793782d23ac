#!/bin/bash
# The package in a copy of this host's root that forgets: installed, upgraded, removed, purged. In a mount name space
# of its own. Words: a directory, the package.
set -eu
dir=$1 package=$2
mount -t tmpfs package "$dir"
mkdir "$dir/files" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/files,workdir=$dir/work" package "$dir/root"
mount -t proc proc "$dir/root/proc"
mount --rbind /dev "$dir/root/dev"
cp "$package" "$dir/root/package.deb"

inside() {
    chroot "$dir/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}
say() {
    echo "package: $*"
}
fail() {
    echo "package: FAILED: $*" >&2
    exit 1
}
# Every name that is not what the host has: what was written and what was hidden. dpkg keeps a log and copies of its
# lists, who changes users keeps one of theirs, and man(1) formats what it shows.
written() {
    (cd "$dir/files" && find . -mindepth 1 ! -type d -printf '%p %y %m %U\n' |
        grep -Ev '^\./(package\.deb|run/systemd/systemd-units-load |var/log/|var/lib/dpkg/(lock|triggers/|[a-z-]*-old)|var/cache/(man|ldconfig)/|etc/(passwd|group|shadow|gshadow)- )' | sort)
}
same() {
    cmp -s "$1" "$dir/root$1"
}
dpkg() {
    inside dpkg --force-unsafe-io "$@" >"$dir/said" 2>&1 || {
        cat "$dir/said" >&2
        fail "dpkg $*"
    }
}

inside getent passwd ninefold >/dev/null && fail "this host has a user ninefold"
# Pages of others are not to be indexed each time.
rm -f "$dir/root/var/lib/man-db/auto-update"
# dpkg writes its lists anew, in its own order, whatever it does: that is the state to come back to.
dpkg --configure -a
before=$(written)

dpkg --install /package.deb
inside ninefold --version
inside getent passwd ninefold >/dev/null || fail "there is no user ninefold"
[ "$(inside readlink -f /sbin/mount.fuse.ninefold)" = /usr/bin/ninefold ] || fail "mount(8) does not find its helper"
inside systemd-analyze verify ninefold.service ninefold.socket ninefold-mount@n-lab.service
inside man -w mount.fuse.ninefold ninefold-serve ninefold-mount >/dev/null || fail "a page of the manual is missing"
inside bash -c '. /usr/share/bash-completion/completions/ninefold' || fail "bash does not take the completions"
inside ninefold config check --space /etc/ninefold/home.ns
say "installed"

# What somebody has written into the configuration outlives an upgrade and a removal.
echo '# mine' >>"$dir/root/etc/ninefold/home.ns"
mkdir -p "$dir/root/var/lib/ninefold" "$dir/root/etc/ninefold/mount"
echo state >"$dir/root/var/lib/ninefold/state"
echo SERVER=ram: >"$dir/root/etc/ninefold/mount/n"
dpkg --install /package.deb
grep -q mine "$dir/root/etc/ninefold/home.ns" || fail "an upgrade has changed the configuration"
say "upgraded"

dpkg --remove ninefold
[ ! -e "$dir/root/usr/bin/ninefold" ] || fail "the program is still there"
grep -q mine "$dir/root/etc/ninefold/home.ns" || fail "a removal has changed the configuration"
[ -e "$dir/root/var/lib/ninefold/state" ] || fail "a removal has taken the state"
dpkg --install /package.deb
say "removed, and installed again"

dpkg --purge ninefold
after=$(written)
inside getent passwd ninefold >/dev/null && fail "the user ninefold is still there"
inside getent group ninefold >/dev/null && fail "the group ninefold is still there"
for list in /etc/passwd /etc/group /etc/shadow /etc/gshadow; do
    same "$list" || fail "$list is not what it was: $(diff "$list" "$dir/root$list")"
done
find "$dir/root/etc" "$dir/root/usr" "$dir/root/lib/systemd" "$dir/root/var/lib" -xdev -name '*ninefold*' | grep . &&
    fail "these are left"
# What dpkg and others keep for themselves is the same, byte by byte, or was never there.
left=$(diff <(echo "$before") <(echo "$after") | sed -n 's/^> \.\([^ ]*\) .*/\1/p' | while read -r file; do
    same "$file" 2>/dev/null || echo "$file"
done)
[ -z "$left" ] || fail "these are not what they were: $left"
say "purged without a trace"
