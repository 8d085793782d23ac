# What the checks in a guest have in common. Read by the others, which have $only set.

failed=0

# check NAME FUNCTION ARGUMENT..: the function runs in a shell of its own, which its first failing command ends.
check() {
    local name=$1 out=${share:-/tmp}/check start=$EPOCHREALTIME
    [[ $name == *$only* ]] || return 0
    shift
    (
        set -eE -o pipefail
        trap 'echo "at line $LINENO: $BASH_COMMAND" >&2' ERR
        "$@"
    ) </dev/null >$out 2>&1
    local status=$?
    local took=$(((${EPOCHREALTIME/./} - ${start/./}) / 1000))
    if [ $status = 0 ]; then
        printf 'ok      %6d ms  %s\n' $took "$name"
        sed -n 's/^note /                     /p' $out
    else
        failed=$((failed + 1))
        printf 'FAILED  %6d ms  %s (status %d)\n' $took "$name" $status
        tail -n 30 $out | sed 's/^/  | /'
    fi
}

# refused TEXT COMMAND..: the command fails, and this is why.
refused() {
    local why
    if why=$("${@:2}" 2>&1); then
        echo "was not refused: ${*:2}" >&2
        return 1
    fi
    [[ $why == *"$1"* ]] || { echo "refused otherwise: $why" >&2 && return 1; }
}

# without WHAT: this the check leaves out, and why is said where it does.
without() {
    echo "note without $1"
}

# there PROGRAM: whether it can be called; which package brings it was said before the guest.
there() {
    command -v "$1" || { without "$1" && false; }
}

same() {
    [ "$1" = "$2" ] || { echo "is $1, not $2" >&2 && return 1; }
}
