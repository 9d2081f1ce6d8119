#!/usr/bin/env bash
# The whole way once, on a fresh directory: up, apply, watch, read through the volume, delete, down, nothing left.
# usage: deploy/quickstart.sh path/to/wharfline
set -euo pipefail

bin=$(realpath "${1:?usage: $0 path/to/wharfline}")
manifest=$(dirname "$0")/../manifests/quickstart.yaml
[ "$(id -u)" = 0 ] || { echo "This mounts a volume, so it needs root: sudo -E make run" >&2; exit 1; }

data=$(mktemp -d /tmp/wharfline-run.XXXXXX)
log=$data.log
up=
watchers=()

say() { printf '\n== %s\n' "$*"; }
wfl() { "$bin" --kubeconfig "$data/kubeconfig" "$@"; }

# Whatever happened, nothing of this run stays: workloads down first, then the process, then the directory.
tidy_up() {
    local code=$?
    trap - EXIT
    [ ${#watchers[@]} -eq 0 ] || kill "${watchers[@]}" 2>/dev/null || true
    [ "$code" -eq 0 ] || { echo "FAILED with exit $code; the last lines of $log:" >&2; tail -n 20 "$log" >&2; }
    "$bin" down --data-dir "$data" --delete-volumes >>"$log" 2>&1 || code=1
    if [ -n "$up" ]; then
        kill -TERM "$up" 2>/dev/null || true
        wait "$up" 2>/dev/null || true
    fi
    if grep -qF " $data" /proc/self/mountinfo; then
        echo "LEFT BEHIND:" >&2
        grep -F " $data" /proc/self/mountinfo >&2
        code=1
    else
        rm -rf --one-file-system "$data"
    fi
    [ "$code" -ne 0 ] || { rm -f "$log"; say "Nothing is left."; }
    exit "$code"
}
trap tidy_up EXIT

port=17443
while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done

say "wharfline up --data-dir $data --listen 127.0.0.1:$port"
mkfifo "$data/ready"
"$bin" up --data-dir "$data" --listen "127.0.0.1:$port" >"$data/ready" 2>"$log" &
up=$!
exec 3<"$data/ready"
rm "$data/ready"
while true; do
    IFS= read -r -t 60 line <&3 || { echo "up did not get ready" >&2; exit 1; }
    echo "$line"
    case $line in *ready*) break ;; esac
done

say "wharfline apply -f manifests/quickstart.yaml"
wfl apply -f "$manifest"
for kind in plugins volumeclaims volumes volumeattachments allocations; do
    wfl get "$kind" -w 2>/dev/null &
    watchers+=($!)
done
wfl wait --for=condition=Ready allocation/hello --timeout=60s >/dev/null

say "The greeting, read through the volume"
path=$(wfl get allocation hello -o json | sed -n 's/^ *"path": "\(.*\)",\{0,1\}$/\1/p' | head -n 1)
cat "$path/greeting"

say "wharfline delete -f manifests/quickstart.yaml"
wfl delete -f "$manifest"
