# The Linux kernel's 9P client over a mux over foreign servers. Read by v9fs.sh.
#
# The mux shows diod at /diod, another ninefold at /ours, a tree in memory at /ram, and at /both a union of what the first
# two have in `union`, where ours takes what is new; and both once more, mounted with -r, in /kept. What lies in their directories is seen past all of them in
# /share/mux: each of them has its name in `where`, and diod the trees of /share.

# host stop NAME, host kill NAME, host mend: see mux.rs.
host() {
    local answer
    exec 9<>"/dev/tcp/10.0.2.2/$asked"
    echo "$*" >&9
    read -r answer <&9
    exec 9>&-
    same "$answer" ok
}

# muxed DIALECT OPTIONS COMMAND..: runs the command at the root of the mux, in a fresh mount.
muxed() {
    local place dialect=$1 cache=${2##*=}
    place=$(mktemp -d /tmp/mux.XXXXXX)
    host mend
    attach "$mux" "$1" "$2" "$place"
    cd "$place"
    "${@:3}"
    cd /
    umount "$place"
}

# within PART DIALECT OPTIONS COMMAND..: runs the command in a folder of its own in a part of the mux.
within() {
    muxed "$2" "$3" in_a_folder "$1" "${@:4}"
}

in_a_folder() {
    local server=disk
    [ "$1" != ram ] || server=ram
    mkdir "$1/${place##*.}"
    cd "$1/${place##*.}"
    "${@:2}"
    cd ../..
    rm -r "$1/${place##*.}"
}

# lies_beneath FILE: it is the same in its server's directory.
lies_beneath() {
    sync -f "$1"
    cmp "$1" "/share/mux/$1"
}

# nowhere NAME: neither server has it.
nowhere() {
    same "$(ls -d /share/mux/*/"$1" 2>/dev/null)" ""
}

a_tree_goes_over_and_back() {
    local tree=$1 name=$1-$2
    cp -r --preserve=mode,timestamps,links "diod/$tree" "ours/trees/$name"
    cp -r --preserve=mode,timestamps,links "ours/trees/$name" "diod/trees/$name"
    cd "diod/trees/$name"
    sha256sum --quiet -c "/share/$tree.sums"
    find . -mindepth 1 ! -type d -printf '%P %y %m %l %s %Ts\n' | sort | diff "/share/$tree.listing" -
    cd ../../..
    # What the host compares must have come.
    sync -f ours
    sync -f diod
}

a_union_shows_both() {
    same "$(ls both)" $'both\ndiod\nours'
    same "$(cat both/both both/diod both/ours)" $'diod\ndiod\nours'
    echo new >both/new
    mkdir both/folder
    echo in it >both/folder/file
    same "$(ls both)" $'both\ndiod\nfolder\nnew\nours'
    lies_beneath ours/union/new
    lies_beneath ours/union/folder/file
    nowhere "diod/union/new"
    same "$(ls /share/mux/diod/union)" $'both\ndiod'
    echo more >>both/diod
    lies_beneath diod/union/diod
    same "$(cat /share/mux/diod/union/diod)" $'diod\nmore'
    rm both/both
    same "$(cat both/both)" ours
    same "$(ls /share/mux/diod/union)" diod
    rm -r both/new both/folder
    same "$(ls /share/mux/ours/union)" $'both\nours'
    echo diod | tee /share/mux/diod/union/both >/share/mux/diod/union/diod
}

# work_lies_beneath HERE ELSEWHERE
work_lies_beneath() {
    local work=$1/work beneath=/share/mux/$1/work
    same "$(cat "$1/where")" "$1"
    mkdir "$work"
    same "$(ls -d /share/mux/*/work)" "$beneath"
    echo "from the host" >"$beneath/host"
    same "$(cat "$work/host")" "from the host"
    head -c 300000 /dev/urandom >"$work/f"
    lies_beneath "$work/f"
    printf middle | dd of="$work/f" bs=1 seek=123456 conv=notrunc status=none
    lies_beneath "$work/f"
    same "$(tail -c +123457 "$beneath/f" | head -c 6)" middle
    truncate -s 200000 "$work/f"
    lies_beneath "$work/f"
    same "$(stat -c %s "$beneath/f")" 200000
    mkdir "$work/folder"
    mv "$work/f" "$work/g"
    mv "$work/g" "$work/folder/h"
    same "$(cd "$beneath" && find . | sort | xargs)" ". ./folder ./folder/h ./host"
    lies_beneath "$work/folder/h"
    ln -s some/where "$work/symlink"
    same "$(readlink "$beneath/symlink")" some/where
    if [ "$dialect-$cache" = 9p2000.u-loose ]; then
        without "hard links"
    else
        ln "$work/host" "$work/link"
        same "$(stat -c %h "$beneath/link")" 2
        same "$(stat -c %i "$beneath/link")" "$(stat -c %i "$beneath/host")"
    fi
    chmod 640 "$work/host"
    same "$(stat -c %a "$beneath/host")" 640
    touch -d '2001-02-03 04:05:06 UTC' "$work/host"
    same "$(stat -c %Y "$beneath/host")" 981173106
    rm "$work/host"
    [ ! -e "$beneath/host" ]
    rm -r "$work"
    nowhere "work"
}

nothing_moves_between() {
    refused "Invalid cross-device link" perl -e 'rename($ARGV[0], $ARGV[1]) or die "$!\n"' "$1/where" "$2/stolen"
    refused "Invalid cross-device link" ln "$1/where" "$2/stolen"
    nowhere "stolen"
    echo moved >"$1/moved"
    mv "$1/moved" "$2/moved" # copies
    same "$(ls -d /share/mux/*/moved)" "/share/mux/$2/moved"
    lies_beneath "$2/moved"
    rm "$2/moved"
}

two_work_at_once() {
    local server n jobs=()
    for server in diod ours; do
        (
            mkdir "$server/at-once"
            for n in {1..10}; do
                head -c $((n * 5000)) /dev/urandom >"/tmp/$server.$n"
                cp "/tmp/$server.$n" "$server/at-once/$n"
                cmp "/tmp/$server.$n" "$server/at-once/$n"
            done
        ) &
        jobs+=($!)
    done
    for n in "${jobs[@]}"; do wait "$n"; done
    for server in diod ours; do
        sync -f $server
        for n in {1..10}; do cmp "/tmp/$server.$n" "/share/mux/$server/at-once/$n"; done
        rm -r $server/at-once
    done
}

# The room of the host's disk behind both servers, and of memory behind the third.
each_space_is_told() {
    local disk part
    disk=$(($(stat -f -c '%b * %S' /share)))
    for part in diod ours; do
        # Some file systems share their room with others, and tell another total each time.
        same $((($(stat -f -c '%b * %S' $part) - disk) * 100 / disk)) 0
    done
    same $(($(stat -f -c '%b * %S' ram))) $((64 << 20))
    [ $disk -gt $((128 << 20)) ]
}

# live_works SERVER: what a user does there meets nothing unusual.
live_works() {
    local n
    mkdir "$1/alive"
    for n in {1..5}; do echo "$n" >"$1/alive/$n"; done
    same "$(ls "$1/alive" | sort -n | xargs)" "1 2 3 4 5"
    mv "$1/alive/1" "$1/alive/one"
    same "$(cat "$1/alive/one")" 1
    same "$(ls "/share/mux/$1/alive" | wc -l)" 5
    lies_beneath "$1/alive/one"
    rm -r "$1/alive"
    same "$(cat "$1/where")" "$1"
}

# a_stopped_server_holds_up_its_own STOPPED LIVE
a_stopped_server_holds_up_its_own() {
    local round n reader writer quitter rm=(rm -f /tmp/rounds /tmp/enough /tmp/read /tmp/written)
    "${rm[@]}"
    head -c 100000 /dev/urandom >/tmp/random
    cp /tmp/random "$1/random"
    cp /tmp/random "$2/random"
    exec 5<"$1/random"
    mkfifo /tmp/rounds
    until [ -e /tmp/enough ]; do
        cmp "$2/random" /tmp/random && echo right || echo wrong
    done >/tmp/rounds &
    exec 4</tmp/rounds
    read -r round <&4
    same "$round" right

    host stop "$1"
    (cat "$1/random" >/tmp/stalled && : >/tmp/read) &
    reader=$!
    (cp /tmp/random "$1/written" && : >/tmp/written) &
    writer=$!
    # What would look up a name waits behind the writer in the kernel itself.
    cat <&5 &
    quitter=$!
    exec 5<&-
    for n in 1 2 3; do
        read -r round <&4
        same "$round" right
    done
    live_works "$2"
    # Whoever gives up is free at once.
    kill -TERM $quitter
    ! wait $quitter
    live_works "$2"
    [ ! -e /tmp/read ] && [ ! -e /tmp/written ]

    host mend
    wait $reader
    cmp /tmp/stalled /tmp/random
    wait $writer
    lies_beneath "$1/written"
    : >/tmp/enough
    while read -r round <&4; do same "$round" right; done
    rm "$1/random" "$1/written" "$2/random"
    "${rm[@]}"
}

# a_killed_server_fails_alone KILLED LIVE
a_killed_server_fails_alone() {
    local reader
    head -c 100000 /dev/urandom >/tmp/random
    cp /tmp/random "$1/random"
    exec 3<"$1/random"
    (while cat "$1/random" >/dev/null; do :; done) &
    reader=$!
    live_works "$2"

    host kill "$1"
    wait $reader
    refused "" cat "$1/where"
    refused "" ls "$1/union"
    refused "" touch "$1/new"
    refused "" cat <&3
    exec 3<&-
    same "$(ls | xargs)" "both diod kept mux ours ram"
    live_works "$2"
    lies_beneath "$2/where"

    host mend
    # It is dialled again when somebody walks there, but not more often than once a second.
    until cat "$1/where" 2>/dev/null; do busybox usleep 10000; done
    nowhere "new"
    cmp "$1/random" /tmp/random
    rm "$1/random"
    live_works "$1"
}

# Writes block after block to an open file and reads it again, and reads another open file, until told to end; says
# the number of each block.
worker='
    my ($dir, $random, $enough, $block) = (@ARGV, "");
    $| = 1;
    open(R, "<", "$dir/read") && open(W, "+>", "$dir/written") && open(S, "<", $random) or die "open: $!";
    for (my $n = 0; !-e $enough; $n++) {
        my ($at, $text) = (1000 * ($n % 100), sprintf("%-1000d", $n));
        sysseek(W, $n * 1000, 0) && (syswrite(W, $text) // die "write $n: $!") == 1000 or die "written $n";
        sysseek(W, $n * 1000, 0) && defined sysread(W, $block, 1000) or die "read $n: $!";
        $block eq $text or die "block $n is not what was written";
        sysseek(R, $at, 0), sysseek(S, $at, 0);
        defined sysread(R, $block, 1000) && sysread(S, $text, 1000) or die "read at $at: $!";
        $block eq $text or die "what is at $at is not what is there";
        print "$n\n";
    }
    close(W) or die "close: $!";
'

# open_files_outlive_their_server KILLED LIVE
open_files_outlive_their_server() {
    local dir=kept/$1/open beneath=/share/mux/$1/open time n blocks works maker
    local rm=(rm -f /tmp/rounds /tmp/enough)
    "${rm[@]}"
    mkdir "$dir"
    head -c 100000 /dev/urandom >/tmp/random
    cp /tmp/random "$dir/read"
    mkfifo /tmp/rounds
    perl -e "$worker" "$dir" /tmp/random /tmp/enough >/tmp/rounds &
    works=$!
    exec 4</tmp/rounds
    for time in 1 2; do
        read -r n <&4
        host kill "$1"
        refused "" cat "$1/where"
        blocks=$(($(stat -c %s "$beneath/written") / 1000))
        echo made >"$dir/made$time" &
        maker=$!
        live_works "$2"
        [ ! -e "$beneath/made$time" ]

        host mend
        wait $maker
        same "$(cat "$beneath/made$time")" made
        until [ "$n" -gt $((blocks + 3)) ]; do read -r n <&4; done
    done
    : >/tmp/enough
    n=$(tail -n 1 <&4)
    wait $works
    perl -e 'printf("%-1000d", $_) for 0 .. $ARGV[0]' "$n" | cmp - "$beneath/written"
    rm -r "$dir"
    "${rm[@]}"
}

# over_the_mux DIALECT OPTIONS TREE
over_the_mux() {
    local dialect=$1 options=$2 cache=${2##*=} msize=${2%%,*} name work part
    name="mux, $1, $cache, ${msize#*=}"
    check "$name: a tree" muxed "$1" "$2" a_tree_goes_over_and_back "$3" "$1-$cache-${msize#*=}"
    check "$name: a union" muxed "$1" "$2" a_union_shows_both
    check "$name: work on diod" muxed "$1" "$2" work_lies_beneath diod
    check "$name: work on ours" muxed "$1" "$2" work_lies_beneath ours
    check "$name: from diod to ours" muxed "$1" "$2" nothing_moves_between diod ours
    check "$name: from ours to diod" muxed "$1" "$2" nothing_moves_between ours diod
    check "$name: two at once" muxed "$1" "$2" two_work_at_once
    # Linux asks for it in .L alone.
    [ "$1" != $L ] || check "$name: space" muxed "$1" "$2" each_space_is_told
    if [ "$how" = all ]; then
        for part in diod ours ram; do
            for work in "${common[@]}"; do
                # diod asks for an open file by its name, and for one that is kept by the path it had.
                [ "$part-$work" != diod-an_open_file_outlives_its_name ] || continue
                [ "$part-$cache-$work" != diod-loose-names_change ] || continue
                check "$name: $work in $part" within $part "$1" "$2" "$work"
            done
        done
    fi
    # What is cached asks no server.
    [ "$cache" = none ] || return 0
    check "$name: diod stopped" muxed "$1" "$2" a_stopped_server_holds_up_its_own diod ours
    check "$name: diod killed" muxed "$1" "$2" a_killed_server_fails_alone diod ours
    check "$name: diod restarted" muxed "$1" "$2" open_files_outlive_their_server diod ours
    [ "$how" = all ] || return 0
    check "$name: ours restarted" muxed "$1" "$2" open_files_outlive_their_server ours diod
    check "$name: ours stopped" muxed "$1" "$2" a_stopped_server_holds_up_its_own ours diod
    check "$name: ours killed" muxed "$1" "$2" a_killed_server_fails_alone ours diod
}
