#!/bin/bash
# The Linux kernel's 9P client at work on our servers. Runs in the guest.
#
# In: quick or all, the ports of servers on 10.0.2.2: a directory, the same directory with each client's own rights
# (0: there is none), a tree in memory, a mux over foreign servers (0: there is none); where the host is asked for
# something; the ports of the host's network as files, and of an archive; what the names of checks must hold. /share
# holds two trees, `part` and `whole`: TREE.tar, TREE.sums (of sha256sum), TREE.listing; the programs fsx and pjdfstest;
# token, which the archive wants to see; and in mux what lies beneath the mux.
# Out: a line for each check, what a failing one said, and the number of those that failed as status.
set -u
how=$1 disk=$2 as_client=$3 ram=$4 mux=$5 asked=$6 net=$7 archive=$8 only=$9

. /share/checks.sh

# attach PORT DIALECT OPTIONS PLACE; the archive's console wants to see the token.
attach() {
    local options=$3
    [ "$1" != "$archive" ] || options+=,aname=token:$(cat /share/token)
    mkdir -p "$4"
    mount -t 9p -o "trans=tcp,port=$1,version=$2,$options" 10.0.2.2 "$4"
}

# below PORT: the folder there in which files can be made.
below() {
    [ "$1" != "$archive" ] || echo /archive
}

# with PORT DIALECT OPTIONS COMMAND..: runs the command in a folder of its own there, in a fresh mount.
with() {
    local place folder dialect=$2 cache=${3##*=} server=ram
    [ "$1" = "$ram" ] || server=disk
    place=$(mktemp -d /tmp/mount.XXXXXX)
    attach "$1" "$2" "$3" "$place"
    folder=$place$(below "$1")/${place##*.}
    mkdir "$folder"
    cd "$folder"
    "${@:4}"
    cd /
    rm -r "$folder"
    umount "$place"
}

L=9p2000.L

### The network as files

# An HTTP exchange whose two ends are both here, with the host's network between them.
calls_are_made_and_taken() {
    local place=/tmp/net s c a address
    attach "$net" "$1" "$2" $place
    cd $place/net/tcp
    # A number has no end of line.
    exec 3<>clone; read -r s <&3 || true
    same "$(cat $s/ctl)" "$s"
    echo 'announce 127.0.0.1!0' >$s/ctl
    address=$(cat $s/local)
    exec 4<>clone; read -r c <&4 || true
    echo "connect $address" >$c/ctl
    exec 5<>$s/listen; read -r a <&5 || true
    same "$(cat $a/local)" "$address"
    exec 6<>$c/data 7<>$a/data
    printf 'GET /page HTTP/1.0\r\n\r\n' >&6
    # Linux asks again and again until a read is as long as was asked for, or the end has come.
    same "$(head -c 21 <&7)" $'GET /page HTTP/1.0\r\n\r'
    printf 'HTTP/1.0 200 OK\r\n\r\n' >&7
    head -c 300000 /dev/zero | tr '\0' x >&7
    exec 5>&- 7>&-
    cat <&6 >/tmp/page
    same "$(head -n 1 /tmp/page)" $'HTTP/1.0 200 OK\r'
    same "$(tail -n +3 /tmp/page | tr -d x)" ""
    same "$(stat -c %s /tmp/page)" 300019
    exec 4>&- 6>&-
    same "$(ls)" "$s"$'\nclone\nstats'
    # Nobody answers there any more.
    exec 3>&-
    exec 4<>clone; read -r c <&4 || true
    # Plain 9P2000 has texts and no numbers, and Linux knows few of Plan 9's.
    local unknown=
    [ "$1" != 9p2000 ] || unknown="Unknown error"
    refused "${unknown:-refused}" call $c "$address"
    same "$(cat $c/err)" "connection refused"
    refused "${unknown:-ermission denied}" call $c '10.1.2.3!80'
    exec 4>&-
    cd /
    umount $place
}

call() {
    echo "connect $2" >"$1/ctl"
}

# Who waits for a call, or for what comes, can be stopped.
who_waits_can_be_stopped() {
    local place=/tmp/net s pid
    attach "$net" "$1" "$2" $place
    cd $place/net/tcp
    exec 3<>clone; read -r s <&3 || true
    echo 'announce 127.0.0.1!0' >$s/ctl
    (exec 5<>$s/listen) &
    pid=$!
    until grep -q 'listen 1' $s/status; do :; done
    kill $pid
    wait $pid || true
    until grep -q 'listen 0' $s/status; do :; done
    exec 3>&-
    cd /
    umount $place
}

### What every dialect can do

# tree_goes_in_and_comes_out whole|part PORT DIALECT OPTIONS
tree_goes_in_and_comes_out() {
    local tree=$1 port=$2 dialect=$3 options=$4 without=none
    local place=/tmp/tree$port folder
    [ "$dialect" != 9p2000 ] || without=links
    attach "$port" "$dialect" "$options" "$place"
    folder=$place$(below "$port")/$tree-$dialect-${options##*=}
    mkdir "$folder"
    tar -C "$folder" --no-same-owner --exclude=$without -xf "/share/$tree.tar"
    umount "$place"
    attach "$port" "$dialect" "$options" "$place"
    cd "$folder"
    sha256sum --quiet -c "/share/$tree.sums"
    # In 9P2000 a new file has at most the permissions of its folder, which tar makes for itself alone at first.
    local modes='s/$//'
    [ "$dialect" != 9p2000 ] || modes='s/ f [0-7]* / f /'
    find . -mindepth 1 ! -type d -printf '%P %y %m %l %s %Ts\n' | sort | sed "$modes" >/tmp/found
    grep -v "^$without/" "/share/$tree.listing" | sed "$modes" | diff - /tmp/found
    cd /
    # What the host compares stays; of others it goes.
    [ "$port" = "$disk" ] || rm -r "${folder:?}"
    umount "$place"
}

files_grow_and_shrink() {
    echo one >f
    echo two >>f
    same "$(cat f)" $'one\ntwo'
    truncate -s 2 f
    same "$(cat f)" on
    truncate -s 5000 f
    same "$(stat -c %s f)" 5000
    same "$(tr -d '\0' <f)" on
    : >f
    same "$(stat -c %s f)" 0
    # Memory has no holes, and less room.
    local far=3000000000
    [ "$server" = disk ] || far=30000000
    dd if=/dev/zero of=sparse bs=1 count=1 seek=$far status=none
    same "$(stat -c %s sparse)" $((far + 1))
    same "$(tail -c 1 sparse | od -An -tx1)" " 00"
}

names_change() {
    mkdir -p a/b/c/d
    echo one >a/one
    mv a/one a/two
    refused "No such file" cat a/one
    same "$(cat a/two)" one
    echo three >a/three
    if [ "$dialect" = $L ]; then
        mv a/two a/three
    else
        # By stat(5) nothing is renamed over something.
        refused "File exists" mv a/two a/three
        rm a/three
        mv a/two a/three
    fi
    same "$(cat a/three)" one
    mv a/three a/b/c/d/moved # where a dialect cannot, mv copies
    same "$(cat a/b/c/d/moved)" one
    mv a/b a/B
    same "$(cat a/B/c/d/moved)" one
    refused "not empty" rmdir a/B
    rm -r a
    refused "No such file" ls a
    local long
    long=$(printf 'x%.0s' {1..255})
    echo long >"$long"
    same "$(cat x*)" long
    refused "File name too long" touch "${long}x"
    echo odd >$'sp ace\nand "quotes" \\ \xc3\xa9'
    same "$(cat sp*)" odd
}

an_open_file_outlives_its_name() {
    # Here Linux asks for the file by its name again.
    [ "$dialect-$cache" != 9p2000-loose ] || without "the file whose name is gone"
    [ "$dialect-$cache" != 9p2000-loose ] || return 0
    echo before >f
    exec 3<>f
    rm f
    refused "No such file" cat f
    same "$(cat <&3)" before
    echo after >&3
    exec 3<&-
    echo new >f
    same "$(cat f)" new
}

modes_are_kept() {
    echo x >f
    chmod 640 f
    same "$(stat -c %a f)" 640
    chmod u+x,o+r f
    same "$(stat -c %a f)" 744
    mkdir -m 750 d
    same "$(stat -c %a d)" 750
    touch -d '2001-02-03 04:05:06 UTC' f
    same "$(stat -c %Y f)" 981173106
}

many_entries_are_listed() {
    mkdir many
    (cd many && seq -f 'a-name-of-some-length-%06g' "$1" | xargs touch)
    same "$(ls many | wc -l)" "$1"
    same "$(ls many | sort -u | wc -l)" "$1"
    rm -r many
}

large_files_are_whole() {
    head -c "$1" /dev/urandom >/tmp/large
    cp /tmp/large f
    cmp f /tmp/large
    dd if=f bs=7777 status=none | cmp - /tmp/large
    rm f
}

writers_do_not_disturb_each_other() {
    local n
    for n in 1 2 3 4; do
        head -c 300000 /dev/zero | tr '\0' "$n" >/tmp/part$n
        dd if=/tmp/part$n of=f bs=10000 seek=$(((n - 1) * 30)) conv=notrunc status=none &
    done
    wait
    cat /tmp/part[1-4] | cmp - f
    # 9P2000 has no appending, and without a cache Linux does not know where the end is.
    [ "$dialect-$cache" != 9p2000-none ] || without "lines that several append"
    [ "$dialect-$cache" != 9p2000-none ] || return 0
    for n in 1 2 3 4; do
        for _ in {1..25}; do echo "line of $n"; done >>lines &
    done
    wait
    same "$(sort lines | uniq -c | tr -s ' ')" $' 25 line of 1\n 25 line of 2\n 25 line of 3\n 25 line of 4'
}

### What .u and .L can do

links() {
    ln -s some/where/else symlink
    same "$(readlink symlink)" some/where/else
    refused "No such file" cat symlink
    if [ "$dialect-$cache" = 9p2000.u-loose ]; then
        # .u counts no links: here Linux takes two names for two files and mixes up what it keeps of them.
        without "hard links"
    else
        echo one >f
        ln f g
        echo two >>g
        same "$(cat f)" $'one\ntwo'
        [ "$dialect" != $L ] || same "$(stat -c %h f)" 2
        rm f
        same "$(cat g)" $'one\ntwo'
    fi
    mkfifo pipe
    same "$(stat -c %F pipe)" fifo
    (echo through >pipe) &
    same "$(cat pipe)" through
}

### What .L can do

git_works() {
    there git || return 0
    export GIT_CONFIG_GLOBAL=/tmp/gitconfig GIT_CONFIG_SYSTEM=/dev/null
    printf '[safe]\ndirectory = *\n' >$GIT_CONFIG_GLOBAL
    git init -q -b main origin
    cd origin
    git config user.name Glenda && git config user.email glenda@example.com
    tar -xf /share/part.tar repo/docs links
    git add -A
    git commit -q -m one
    same "$(git status --porcelain)" ""
    echo change >>repo/docs/protocol.md
    git mv repo/docs/testing.md moved
    git commit -q -a -m two
    cd ..
    git clone -q origin clone
    cd clone
    same "$(git rev-parse HEAD)" "$(git -C ../origin rev-parse HEAD)"
    same "$(git status --porcelain)" ""
    [ "$how" = quick ] || git gc -q
    git fsck --strict --no-progress
    git checkout -q HEAD~1
    git diff --quiet HEAD
    ! grep -q '^change$' repo/docs/protocol.md
    cd ..
}

locks_are_kept() {
    exec 3>lock
    flock -n 3
    refused "" flock -n lock true
    exec 3>&-
    flock -n lock true
    # fcntl(2): a second process meets the first one's record, and only where it lies.
    perl -e '
        use Fcntl;
        sub ask { fcntl($_[0], F_SETLK, pack("s s x4 q q i x4", @_[1..4], 0)) }
        open(F, "+>", "record") or die "open: $!";
        ask(*F, F_WRLCK, 0, 100, 50) or die "lock: $!";
        my $child = fork // die;
        if (!$child) {
            open(G, "+<", "record") or exit 2;
            exit 3 if ask(*G, F_WRLCK, 0, 149, 10);
            exit 4 if !ask(*G, F_WRLCK, 0, 150, 10);
            exit 0;
        }
        waitpid($child, 0);
        die "the other: " . ($? >> 8) if $?;
    '
}

space_is_told() {
    local total
    total=$(stat -f -c %b .)
    [ "$total" -gt 1000 ]
    same "$(stat -f -c %l .)" 255
    same "$(stat -f -c %T .)" v9fs
}

finer_things() {
    echo body >f
    chmod 4711 f
    same "$(stat -c %a f)" 4711
    [ "$(stat -c %i f)" != "$(stat -c %i .)" ]
    fallocate -l 100 g || true # v9fs has none; it must only not hang
    mkdir d && touch d/x
    exec 3<d
    mv d e
    same "$(ls /proc/self/fd/3/)" x
    exec 3<&-
    sync f
    sync -f .
    refused "File exists" ln -s x f
    refused "Is a directory" rm e
    refused "Not a directory" ls f/x
    refused "Too many levels" sh -c 'ln -s loop loop; cat loop'
}

attributes_are_kept() {
    there setfattr || return 0
    touch f
    setfattr -n user.colour -v green f
    setfattr -n user.empty f
    head -c 3000 /dev/zero | tr '\0' x >/tmp/value
    setfattr -n user.long -v "$(cat /tmp/value)" f
    same "$(getfattr --only-values -n user.colour f)" green
    same "$(getfattr --only-values -n user.long f)" "$(cat /tmp/value)"
    same "$(getfattr f | grep -c '^user')" 3
    setfattr -x user.colour f
    refused "No such attribute" getfattr -n user.colour f
}

a_data_base_is_shared() {
    there sqlite3 || return 0
    sqlite3 db "create table t(who, n);"
    local n
    for n in 1 2 3; do
        for i in 1 2 3 4 5; do echo "insert into t values($n, $i);"; done | sqlite3 -cmd '.timeout 60000' db &
    done
    wait
    same "$(sqlite3 db 'select count(*), sum(n) from t; pragma integrity_check;')" $'15|45\nok'
}

fsx_finds_nothing() {
    cp /share/"$1" /tmp/fsx.toml
    /share/fsx -q -f /tmp/fsx.toml -S 9 -N "$2" -P /tmp f
}

others_have_their_own_rights() {
    chmod 711 .
    echo secret >mine
    chmod 600 mine
    setpriv --reuid 65534 --regid 65534 --clear-groups true
    refused "Permission denied" setpriv --reuid 65534 --regid 65534 --clear-groups cat mine
    refused "Permission denied" setpriv --reuid 65534 --regid 65534 --clear-groups touch theirs
    mkdir -m 777 all
    setpriv --reuid 65534 --regid 65534 --clear-groups touch all/theirs
    same "$(stat -c %u:%g all/theirs)" 65534:65534
    chown 1234:5678 mine
    same "$(stat -c %u:%g mine)" 1234:5678
}

# pjdfstest, whose failures must be exactly the lines of /share/pjdfstest.known.
posix_is_kept() {
    grep -q '^tests:' /etc/passwd || echo 'tests:x:4242:4242::/:/bin/false' >>/etc/passwd
    grep -q '^tests:' /etc/group || echo 'tests:x:4242:' >>/etc/group
    chmod 755 .
    /share/pjdfstest -c /share/pjdfstest.toml -p . >/tmp/pjd 2>&1 || true
    sed -n 's/^Summary: /note /p' /tmp/pjd
    grep -Eq '^Summary: .* 3[7-9][0-9] passed' /tmp/pjd
    sed -n 's/^\([a-z0-9_:]*\)  *FAILED.*/\1/p' /tmp/pjd | sort | diff /share/pjdfstest.known - ||
        (grep -A 6 ' FAILED' /tmp/pjd && false)
}

### The archive

# A tree of files comes in, something is built in it; it is dumped and deleted, and there in the dump as it was.
what_was_deleted_is_in_the_dump() {
    local tree=$1 options=$2 place=/tmp/archive dump files
    attach "$archive" $L "$options" $place
    cd $place/archive
    mkdir source
    tar -C source --no-same-owner -xf "/share/$tree.tar"
    built source/built
    files=$(ls -A source/built | wc -l)
    # Who writes until the moment of the dump and behind it is in the way of nobody.
    : >beside
    (for n in {1..50}; do echo "$n" >>beside; done) &
    echo 'dump' >$place/fs/main/ctl
    dump=$(ls -d $place/dump/*/* | tail -n 1)
    rm -r source
    same "$(ls)" $'adm\nbeside'
    wait
    same "$(wc -l <beside)" 50
    [ "$(wc -l <"$dump/beside")" -le 50 ]
    # It can be read while it is on its way.
    same "$(ls -A "$dump/source/built" | wc -l)" "$files"
    echo 'dump wait' >$place/fs/main/ctl
    umount_from_here
    attach "$archive" $L "$options" $place
    as_it_was
    refused "Read-only file system" touch "$dump/new"
    refused "Read-only file system" rm -r "$dump/source/built"
    # What was lost comes back.
    cp -a "$dump/source/built" $place/archive/back
    diff -r "$dump/source/built" $place/archive/back
    rm -r $place/archive/back $place/archive/beside
    umount_from_here
}

umount_from_here() {
    cd /
    umount "$place"
}

as_it_was() {
    cd "$dump/source"
    sha256sum --quiet -c "/share/$tree.sums"
    find . -mindepth 1 ! -type d -printf '%P %y %m %l %s %Ts\n' | grep -v '^built/' | sort | diff "/share/$tree.listing" -
    [ ! -e built/answer ] || same "$(built/answer)" 42
    cd $place/archive
}

# built PLACE: a small program there, of several files.
built() {
    mkdir "$1"
    there cc || return 0
    echo 'int answer(void); int printf(const char *, ...); int main(void) { return printf("%d\n", answer()) < 0; }' >"$1/main.c"
    echo 'int answer(void) { return 42; }' >"$1/answer.c"
    (cd "$1" && cc -c main.c && cc -c answer.c && ar rc lib.a answer.o && cc -o answer main.o lib.a)
    same "$("$1/answer")" 42
}

. /share/mux.sh

### The order

options=msize=262144,access=user

if [ "$how" = quick ]; then
    check "disk, $L: a tree" tree_goes_in_and_comes_out part "$disk" $L $options,cache=none
    check "disk, $L: git" with "$disk" $L $options,cache=none git_works
    check "disk, $L: links" with "$disk" $L $options,cache=none links
    check "ram, $L: a tree" tree_goes_in_and_comes_out part "$ram" $L $options,cache=loose
    check "disk, 9p2000.u: a tree" tree_goes_in_and_comes_out part "$disk" 9p2000.u $options,cache=none
    check "disk, 9p2000: names" with "$disk" 9p2000 $options,cache=none names_change
    check "archive, $L: a dump" what_was_deleted_is_in_the_dump part $options,cache=none
    check "net, $L: calls" calls_are_made_and_taken $L $options,cache=none
    check "net, $L: flush" who_waits_can_be_stopped $L $options,cache=none
    [ "$mux" = 0 ] || over_the_mux $L $options,cache=none part
    exit $failed
fi

common=(files_grow_and_shrink names_change an_open_file_outlives_its_name modes_are_kept
    writers_do_not_disturb_each_other)
finer=(git_works locks_are_kept space_is_told finer_things attributes_are_kept a_data_base_is_shared)

# everything SERVER PORT DIALECT CACHE
everything() {
    local dialect=$3 options=$options,cache=$4 work
    check "$1, $dialect, $4: a tree" tree_goes_in_and_comes_out part "$2" "$dialect" "$options"
    for work in "${common[@]}"; do
        check "$1, $dialect, $4: $work" with "$2" "$dialect" "$options" "$work"
    done
    [ "$dialect" = 9p2000 ] || check "$1, $dialect, $4: links" with "$2" "$dialect" "$options" links
    [ "$dialect" = $L ] || return 0
    for work in "${finer[@]}"; do
        check "$1, $dialect, $4: $work" with "$2" "$dialect" "$options" "$work"
    done
    if [ "$4" = none ]; then
        check "$1, $dialect, $4: fsx" with "$2" "$dialect" "$options" fsx_finds_nothing fsx.toml 3000
    else
        check "$1, $dialect, $4: fsx with mmap" with "$2" "$dialect" "$options" fsx_finds_nothing fsx-mmap.toml 3000
    fi
}

check "disk, $L: a whole tree" tree_goes_in_and_comes_out whole "$disk" $L $options,cache=none
for dialect in $L 9p2000.u 9p2000; do
    everything disk "$disk" $dialect none
    everything disk "$disk" $dialect loose
    everything ram "$ram" $dialect none
    everything archive "$archive" $dialect none
    check "disk, $dialect: 1000 entries" with "$disk" $dialect $options many_entries_are_listed 1000
    check "ram, $dialect: 1000 entries" with "$ram" $dialect $options many_entries_are_listed 1000
    for msize in 4096 8191 65536 1048576; do
        check "disk, $dialect: msize $msize" with "$disk" $dialect msize=$msize,access=user large_files_are_whole 700000
        check "ram, $dialect: msize $msize" with "$ram" $dialect msize=$msize,access=user many_entries_are_listed 100
    done
done
everything disk "$disk" $L mmap
everything ram "$ram" $L loose
everything archive "$archive" $L loose
check "archive, $L: a dump" what_was_deleted_is_in_the_dump whole $options,cache=none
for dialect in $L 9p2000.u 9p2000; do
    check "net, $dialect: calls" calls_are_made_and_taken $dialect $options,cache=none
    check "net, $dialect: flush" who_waits_can_be_stopped $dialect $options,cache=none
done
if [ "$as_client" != 0 ]; then
    check "disk, $L: each client's rights" with "$as_client" $L $options others_have_their_own_rights
    check "disk, $L: pjdfstest" with "$as_client" $L $options posix_is_kept
fi
if [ "$mux" != 0 ]; then
    over_the_mux $L $options,cache=none whole
    over_the_mux $L msize=1048576,access=user,cache=loose part
    over_the_mux $L msize=4096,access=user,cache=none part
    over_the_mux 9p2000.u $options,cache=none part
    over_the_mux 9p2000.u msize=8192,access=user,cache=loose part
fi
exit $failed
