# Our mount by FUSE on this host, under suites and programs of others.
#
# In: the folder of the step ($1: checks.sh, fsx.toml, fsx-mmap.toml, pjdfstest.toml, fsx, pjdfstest), the command
# ($2), and the checks to do ($3: those whose names hold it). Runs as root in a mount namespace of its own.
# Out: a line for each check, what a failing one said, and the number of those that failed as status.
set -u
ninefold=$2 only=$3

# The folder by a short name, wherever the clone is: pjdfstest binds sockets, whose paths have 108 bytes in all.
share=$(mktemp -d /tmp/fuse.XXXXXX) && mount --bind "$1" "$share" || exit 1
trap 'umount -l "$share" && rmdir "$share"' EXIT

. "$share/checks.sh"

# with SERVER FOLDER OPTIONS COMMAND..: the command runs in the folder of a fresh mount; that ends well, too.
with() {
    local server=$1 folder=$2 options=$3 place
    place=$(mktemp -d "$share/mount.XXXXXX")
    "$ninefold" mount --config /dev/null -f -o "$options" "$server" "$place" >"$place.log" 2>&1 &
    local pid=$!
    # Whatever comes, nothing is left behind.
    trap "umount -l '$place' 2>/dev/null; kill -9 $pid 2>/dev/null" EXIT
    until grep -q '^mounted on ' "$place.log"; do
        kill -0 $pid || { cat "$place.log" >&2 && return 1; }
        read -rt 0.05 <> <(:) || true
    done
    (cd "$place/$folder" && "${@:4}")
    umount "$place"
    wait $pid
    trap - EXIT
    rmdir "$place"
    same "$(grep -v '^mounted on ' "$place.log" || true)" ''
}

fsx_is_right() {
    "$share/fsx" -N 2000 -S 7 -f "$share/$1" fsxfile
}

# posix_is_kept [KNOWN]: pjdfstest, of which nothing fails, or just this. What it leaves out: 13 checks mount a file
# system anew, 5 need fallocate(2), which 9P does not have, 2 a second file system, and 1 flags of a file that Linux
# has not. open::etxtbsy ends one way or the other: its open(2) for reading with O_TRUNC, which POSIX leaves undefined,
# cuts the program that runs before the kernel looks whether one does, and then that program may have died of it.
posix_is_kept() {
    chmod 755 .
    "$share/pjdfstest" -c "$share/pjdfstest.toml" -p . >"$share/pjd" 2>&1 || true
    sed -n 's/^Summary: /note /p' "$share/pjd"
    same "$(sed -n 's/^\([a-z0-9_:]*\)  *FAILED.*/\1/p' "$share/pjd" | sed '/^open::etxtbsy$/d' | sort)" "${1:-}" ||
        (grep -A 6 ' FAILED' "$share/pjd" && false)
    grep -Eq '^Summary: [012] failed, 21 skipped, 37[567] passed' "$share/pjd"
}

# Of open::etxtbsy what does not hang on who is faster: nothing is opened to be written, cut or not, while it runs.
a_running_program_is_kept() {
    cp "$(command -v sleep)" program
    cp program as_it_was
    ./program 1000 &
    local pid=$! how
    until [ "$(readlink "/proc/$pid/exe")" = "$PWD/program" ]; do
        kill -0 $pid
        read -rt 0.05 <> <(:) || true
    done
    for how in ': >program' ': >>program' ': <>program'; do
        refused 'Text file busy' bash -c "$how"
    done
    cmp program as_it_was
    kill $pid
    wait $pid || [ $? = 143 ]
    : >program
    [ ! -s program ]
    rm program as_it_was
}

git_works() {
    git init -q repo
    cd repo
    cp -r "$share"/source/. .
    git add .
    git -c user.name=n -c user.email=n commit -qm one
    sed -i 's/1/2/' one
    mv two three
    same "$(git status --short | tr '\n' ' ')" ' M one  D two ?? three '
    git add -A
    git -c user.name=n -c user.email=n commit -qm two
    git checkout -q HEAD~
    git gc -q
    git fsck --strict
    git clone -q . ../clone
    same "$(cat ../clone/one)" 1
    rm -rf ../clone ../repo
}

a_compiler_works() {
    there cc
    mkdir c
    for n in {1..20}; do echo "int f$n(void) { return $n; }" >c/f$n.c; done
    (
        for n in {1..20}; do echo "int f$n(void);"; done
        echo 'int main(void) { return f1() + f20() != 21; }'
    ) >c/main.c
    for file in c/*.c; do cc -c "$file" -o "${file%.c}.o" & done
    wait
    cc c/*.o -o c/main
    c/main
    rm -r c
}

a_data_base_works() {
    there sqlite3
    for mode in delete wal; do
        sqlite3 base "pragma journal_mode=$mode; create table t(a, b);"
        for n in {1..4}; do
            sqlite3 -cmd '.timeout 60000' base "with recursive c(x) as (select 1 union all select x + 1 from c
                where x < 2000) insert into t select x, hex(randomblob(40)) from c;" &
        done
        wait
        same "$(sqlite3 base 'create index i on t(b); select count(*) from t; pragma integrity_check;')" $'8000\nok'
        rm base*
    done
}

# As editors do it: beside, and moved over; in place; a file of their own that says that it is open.
an_editor_works() {
    printf 'one\ntwo\nthree\n' >text
    chmod 640 text
    sed -i.bak s/two/2/ text
    same "$(cat text)" $'one\n2\nthree'
    same "$(stat -c %a text)" 640
    if there ed; then
        printf '1d\nw\nq\n' | ed -s text
        same "$(cat text)" $'2\nthree'
    fi
    if there vim.tiny; then
        vim.tiny -es -u NONE -i NONE -c 'set backup writebackup' -c '%s/three/3/' -c 'wq' text </dev/null
        same "$(cat text)" $'2\n3'
        same "$(ls -A | grep -c swp || true)" 0
    fi
    rm text*
}

# What is on one side is on the other, in time: whoever changes it.
what_others_change_is_seen() {
    local beside=$1
    echo 1 >here
    same "$(cat here)" 1
    echo 22 >"$beside/here"
    for n in {1..100}; do
        [ "$(cat here)" != 22 ] || break
        read -rt 0.05 <> <(:) || true
    done
    same "$(cat here)" 22
    mv "$beside/here" "$beside/there"
    for n in {1..100}; do
        [ -e here ] || break
        read -rt 0.05 <> <(:) || true
    done
    [ ! -e here ]
    same "$(cat there)" 22
    rm there
}

for name in passwd group; do
    cp /etc/$name "$share/$name"
done
grep -q '^tests:' "$share/passwd" || echo 'tests:x:4242:4242::/:/bin/false' >>"$share/passwd"
grep -q '^tests:' "$share/group" || echo 'tests:x:4242:' >>"$share/group"
for name in passwd group; do
    mount --bind "$share/$name" /etc/$name
done
mkdir -p "$share/disk" "$share/source/deep/er"
echo 1 >"$share/source/one"
echo 2 >"$share/source/two"
ln -s deep "$share/source/link"
cp "$share/checks.sh" "$share/source/deep/er"
"$ninefold" --config /dev/null fs ream --size 1G "$share/archive" >/dev/null || exit 1

all=allow_other,default_permissions
for server in "disk:$share/disk " "fs:$share/archive archive" 'ram:1G '; do
    name=${server%%:*} where=${server%% *} folder=${server#* }
    check "$name: fsx" with "$where" "$folder" rw fsx_is_right fsx.toml
    check "$name: fsx with mappings" with "$where" "$folder" rw fsx_is_right fsx-mmap.toml
    # A tree in memory has no holes in its files: 2 GiB are 2 GiB.
    known=
    [ "$name" != ram ] || known=open::interact_2gb
    check "$name: pjdfstest" with "$where" "$folder" $all posix_is_kept $known
    check "$name: a running program" with "$where" "$folder" rw a_running_program_is_kept
    check "$name: git" with "$where" "$folder" rw git_works
    check "$name: a compiler" with "$where" "$folder" rw a_compiler_works
    check "$name: a data base" with "$where" "$folder" rw a_data_base_works
    check "$name: an editor" with "$where" "$folder" rw an_editor_works
done
disk=disk:$share/disk
check 'disk, written back: fsx with mappings' with "$disk" . write_back fsx_is_right fsx-mmap.toml
check 'disk, written back: pjdfstest' with "$disk" . $all,write_back posix_is_kept
check 'disk, nothing kept: fsx with mappings' with "$disk" . cache=never fsx_is_right fsx-mmap.toml
check 'disk, nothing kept: a running program' with "$disk" . cache=never a_running_program_is_kept
check 'disk, nothing kept: git' with "$disk" . cache=never git_works
for cache in auto never 1; do
    check "disk, cache=$cache: others" with "$disk" . cache=$cache what_others_change_is_seen "$share/disk"
done
exit $failed
