#!/bin/bash
# The Linux kernel's AoE driver and aoetools at work on our targets. Runs in the guest.
#
# In: quick or all. e1.0 is on eth1, e1.2 on eth1 and eth2, which have jumbo frames; e1.1 on eth3, a card that pads what
# is short, as is e9.0, vblade's, if /share/vblade is there. /share/tree is a tree of files, /share/sums what sha256sum says.
# Out: a line for each check, what a failing one said, and the number of those that failed as status.
set -u
how=$1 only=
PATH=$PATH:/sbin:/usr/sbin
. /share/checks.sh

# until_it CONDITION..: the command succeeds in time.
until_it() {
    local end=$((SECONDS + 30))
    until "$@" >/tmp/until 2>&1; do
        [ $SECONDS -lt $end ] || { cat /tmp/until && echo "never: $*" && return 1; } >&2
        busybox usleep 50000
    done
}

# host WORD..: see xtask/src/aoe/linux.rs.
host() {
    echo "$*" >/share/asked.new
    mv /share/asked.new /share/asked
    until_it [ -e /share/answered ]
    same "$(cat /share/answered)" ok
    rm /share/answered
}

# says TEXT COMMAND..: it is in what the command says.
says() {
    local said
    said=$("${@:2}" 2>&1) || { echo "status $?: $said" >&2 && return 1; }
    [[ $said == *"$1"* ]] || { echo "says not $1: $said" >&2 && return 1; }
}

# found DISK INTERFACES PAYLOAD: so the driver has it.
found() {
    local disk=/sys/block/etherd!$1
    aoe-discover
    same "$(cat "$disk/state") $(tr , '\n' <"$disk/netif" | sort | xargs) $(cat "$disk/payload")" "up $2 $3"
}

disks_are_found() {
    same "$(cat /sys/class/net/eth1/mtu /sys/class/net/eth2/mtu /sys/class/net/eth3/mtu)" $'9000\n9000\n1500'
    aoe-interfaces eth1 eth2 eth3
    same "$(aoe-interfaces)" "eth1 eth2 eth3"
    until_it found e1.0 eth1 8704
    until_it found e1.1 eth3 1024
    until_it found e1.2 "eth1 eth2" 8704
    same "$(aoe-stat | sed 's/^ *//; s/ *$//; s/  */ /g; s/eth2,eth1/eth1,eth2/; /^e9/d')" "e1.0 0.016GB eth1 8704 up
e1.1 0.033GB eth3 1024 up
e1.2 0.033GB eth1,eth2 8704 up"
}

disks_are_forgotten_and_found() {
    aoe-flush e1.2
    [ ! -e '/sys/block/etherd!e1.2' ]
    until_it found e1.2 "eth1 eth2" 8704
}

# pinged SHELF SLOT MODEL: by a program that takes no frame which is shorter than Ethernet has them.
pinged() {
    says "found e$1.$2 with mac" timeout 10 aoeping -v -s 5 "$1" "$2" eth3
    says "model: $3" timeout 10 aoeping -I -s 5 "$1" "$2" eth3
}

# config WANTED WORD..: what aoecfg is told of 1.1. It waits for a second and does not end at an answer.
config() {
    same "$(aoecfg -t 1 "${@:2}" 1 1 eth3)" "$1"
}

config_strings_are_set() {
    config ""
    config "our lab" -c set -s "our lab"
    config "*badcfg*" -c set -s "their lab"
    config "our lab" -c test -s "our lab"
    config "" -c test -s our
    config "our lab" -c prefix -s our
    config "lab" -c fset -s lab
    same "$(aoecfg -t 1 eth3 | grep -v ^9 | sort)" $'1.1\tlab'
}

bytes_are_the_same() {
    local disk=/dev/etherd/$1 at=$2
    head -c 3M /dev/urandom >/tmp/bytes
    dd if=/tmp/bytes of="$disk" bs=64K seek=$((at * 512)) oflag=direct,seek_bytes status=none &
    for part in 1 2 3; do
        dd if=/tmp/bytes of="$disk" bs=64K seek=$((64 + 48 * part)) oflag=direct status=none &
    done
    wait
    dd if="$disk" bs=64K skip=$((at * 512)) count=48 iflag=direct,skip_bytes status=none | cmp - /tmp/bytes
    for part in 1 2 3; do
        dd if="$disk" bs=64K skip=$((64 + 48 * part)) count=48 iflag=direct status=none | cmp - /tmp/bytes
    done
}

partitions_are_seen() {
    local disk=/dev/etherd/$1
    # One partition of type 83: 8192 sectors behind 2048.
    printf '\0\0\0\0\203\0\0\0\0\010\0\0\0\040\0\0' | dd of="$disk" bs=1 seek=446 conv=notrunc status=none
    printf '\125\252' | dd of="$disk" bs=1 seek=510 conv=notrunc status=none
    blockdev --rereadpt "$disk"
    until_it [ -b "${disk}p1" ]
    same "$(blockdev --getsz "${disk}p1")" 8192
    head -c 1M /dev/urandom | tee /tmp/bytes | dd of="${disk}p1" bs=1M seek=3 iflag=fullblock oflag=direct status=none
    dd if="$disk" bs=1M skip=4 count=1 iflag=direct status=none | cmp - /tmp/bytes
}

# checked DISK: what e2fsck finds without changing anything.
checked() {
    e2fsck -f -n "/dev/etherd/$1"
}

mounted() {
    mkdir -p /tmp/disk
    mount -t ext4 "/dev/etherd/$1" /tmp/disk
}

files_are_whole() {
    (cd /tmp/disk/tree && sha256sum --quiet -c /share/sums)
}

a_file_system_works() {
    mkfs.ext4 -q -F "/dev/etherd/$1"
    mounted "$1"
    cp -r /share/tree /tmp/disk
    umount /tmp/disk
    checked "$1"
    mounted "$1"
    files_are_whole
    umount /tmp/disk
}

grown() {
    aoe-revalidate "$1"
    [ "$(blockdev --getsize64 "/dev/etherd/$1")" = "$2" ]
}

a_disk_grows() {
    mounted "$1"
    host grow
    until_it grown "$1" $((32 << 20))
    resize2fs "/dev/etherd/$1"
    head -c 17M /dev/urandom >/tmp/disk/new
    sha256sum </tmp/disk/new >/tmp/new
    umount /tmp/disk
    checked "$1"
    mounted "$1"
    sha256sum </tmp/disk/new | cmp - /tmp/new
    files_are_whole
    rm /tmp/disk/new
    umount /tmp/disk
}

# killed DISK: while it is written; the driver asks until it is there again.
a_target_is_killed() {
    local writer
    mounted "e$1"
    (head -c 10M /dev/urandom | tee /tmp/disk/kept | sha256sum >/tmp/kept && sync -f /tmp/disk) &
    writer=$!
    host kill "$1"
    host start "$1"
    wait $writer
    umount /tmp/disk
    checked "e$1"
    mounted "e$1"
    sha256sum </tmp/disk/kept | cmp - /tmp/kept
    rm /tmp/disk/kept
    umount /tmp/disk
}

# Both ways are used; one is cut, and then the other one, while bytes are under way.
a_way_is_cut() {
    local way
    for way in t0 t1; do
        (bytes_are_the_same "$1" 77) &
        host link $way down
        wait $!
        host link $way up
        until_it found "$1" "eth1 eth2" 8704
        bytes_are_the_same "$1" 78
    done
}

for card in eth1 eth2 eth3; do
    ip link set $card up
done
check "disks are found" disks_are_found
check "aoeping" pinged 1 1 Ninefold
[ ! -e /share/vblade ] || check "aoeping of vblade" pinged 9 0 "Coraid EtherDrive vblade"
check "aoecfg" config_strings_are_set
check "bytes, jumbo frames" bytes_are_the_same e1.0 1
check "bytes, small frames" bytes_are_the_same e1.1 3
check "bytes, two ways" bytes_are_the_same e1.2 5
check "partitions" partitions_are_seen e1.1
check "ext4, small frames" a_file_system_works e1.1
check "ext4, jumbo frames" a_file_system_works e1.0
check "ext4 grows" a_disk_grows e1.0
check "a target is killed" a_target_is_killed 1.0
if [ "$how" = all ]; then
    check "aoe-flush" disks_are_forgotten_and_found e1.2
    check "ext4, two ways" a_file_system_works e1.2
    check "a way is cut" a_way_is_cut e1.2
fi
[ $failed = 0 ] || dmesg | grep -E 'aoe|EXT4|I/O' | tail -n 20
exit $failed
