#!/usr/bin/env bash
# `shardwise profile --hosts`: ranks on hosts that this machine emulates, and what is left of these after every kind of
# end. Part of `make test-full`; needs root.
#
#   tests/mpi/emulated_hosts.sh BUILD
set -euo pipefail
build=$(cd "${1:?the directory of the build}" && pwd)
scratch=$(mktemp -d)
readonly build scratch limit=200  # seconds for one run: a hang is a failure
export TMPDIR=$scratch SHARDWISE_THREADS=1
trap 'ip netns del "shardwise-test-$$" 2>/dev/null || true; rm -rf "$scratch"' EXIT

fail() { echo "emulated_hosts: $*" >&2; exit 1; }

# profile ARGUMENTS...: output in $scratch/stdout and stderr; returns the exit code.
profile() { timeout --kill-after 10 "$limit" "$build/shardwise" profile "$@" >"$scratch/stdout" 2>"$scratch/stderr"; }

# check PYTHON: of the JSON document `run`.
check() {
  python3 -c 'import json, sys; run = json.load(open(sys.argv[1])); rows = run["rows"]
assert eval(sys.argv[2]), sys.argv[2]' "$scratch/stdout" "$1" || fail "must hold: $1; got $(cat "$scratch/stdout")"
}

# Fails if there is a namespace of this program, a process in it, or a temporary directory. The shell that deletes them may
# outlive a killed program by a moment.
expect_nothing_left() {
  for _ in $(seq 100); do
    [ -n "$(ip netns list | grep '^shardwise-[0-9]' || ls -d "$scratch"/shardwise-* 2>/dev/null || alive)" ] || return 0
    sleep 0.1
  done
  fail "$1 must leave nothing; got $(ip netns list; ls "$scratch"; alive)"
}

# mpirun, its daemons and the ranks: their environment says that they are on emulated hosts.
alive() { grep -lsz '^SHARDWISE_EMULATED_HOSTS=' /proc/[0-9]*/environ || true; }

# begin: starts a long run in the background and waits for its first rank.
begin() {
  # A shell starts jobs in the background so that they ignore SIGINT.
  env --default-signal=INT "$build/shardwise" profile mlp --ranks 1,2,4 --hosts 2 --hidden 64 --rows 64 --seconds 600 >"$scratch/stdout" 2>"$scratch/stderr" &
  job=$!
  for _ in $(seq 600); do
    # The first host has mpirun and two ranks, the second its daemon and two ranks.
    [ "$(ip netns pids "shardwise-$job-1" 2>/dev/null | wc -l)" -lt 3 ] || [ "$(ip netns pids "shardwise-$job-2" 2>/dev/null | wc -l)" -lt 3 ] || return 0
    sleep 0.1
  done
  fail "ranks must start; got $(cat "$scratch/stderr")"
}

# expect_end SIGNAL CODE
expect_end() {
  local code=0
  begin
  kill "-$1" "$job"
  wait "$job" 2>/dev/null || code=$?
  [ "$code" -eq "$2" ] || fail "SIG$1 must end with exit code $2; got $code: $(cat "$scratch/stderr")"
  [ "$1" = KILL ] || [ "$(grep -c 'shardwise: ended by signal' "$scratch/stderr")" -eq 1 ] || fail "SIG$1 must be reported; got $(cat "$scratch/stderr")"
  expect_nothing_left "SIG$1"
}

profile mlp --ranks 1,2,4 --hosts 2 --rate 200mbit --hidden 128 --rows 512 --dtype fp32 --seconds 0.2 --compare --json ||
  fail "profile mlp failed: $(cat "$scratch/stderr")"
check '[row["hosts"] for row in rows] == [1, 1, 2] and [row["crosses_hosts"] for row in rows] == [False, False, True]'
check 'run["emulated_hosts"] == {"hosts": 2, "ranks_per_host": 2, "delay_seconds": None, "bits_per_second": 2e8}'
check 'all(row["difference"]["within_bound"] for row in rows[1:])'
# Each host has to send 512 x 128 x 4 bytes, at 200 Mbit/s in 10.5 ms, of which a bucket holds up to 16 KB.
check 'rows[2]["communication_us"] > 9800 and rows[2]["together_us"] > 9800'
check 'rows[2]["model_rows_per_second_per_rank"] < 512 / 4 / 10.4e-3'
expect_nothing_left "a run"
echo "emulated_hosts: ranks compute the same on two hosts, and what they send takes the time of its rate"

profile block --model tiny --ranks 1,2 --hosts 2 --seq-len 16 --batch-size 2 --seconds 0.05 --backward --largest --memory-cap 1 --json ||
  fail "profile block failed: $(cat "$scratch/stderr")"
check '[row["hosts"] for row in rows] == [1, 2] and all(row["largest_batch"] > 0 for row in rows)'
profile step --model tiny --ranks 1,2,4 --hosts 4 --rate 1gbit --seq-len 16 --batch-size 2 --seconds 0.05 || fail "profile step failed: $(cat "$scratch/stderr")"
grep -q 'tiny, 2 x 16 tokens, bf16, sequence parallelism, .*, 4 emulated hosts of 1 rank, 1 Gbit/s' "$scratch/stdout" || fail "got $(cat "$scratch/stdout")"
grep -q '^4 .*  4, crosses$' "$scratch/stdout" || fail "must mark a group that crosses hosts; got $(cat "$scratch/stdout")"
expect_nothing_left "a run"
echo "emulated_hosts: a block and a step run on two and four hosts"

code=0
profile mlp --ranks 1,2 --hosts 2 --delay 2ms --hidden 16 --rows 8 --dtype fp32 --seconds 0.05 --json || code=$?
if [ "$code" -eq 0 ]; then
  # The few bytes are in the announcements, which are sent once.
  check 'rows[1]["communication_us"] > 2000'
  echo "emulated_hosts: messages take the stated delay"
else
  [ "$code" -eq 2 ] && grep -q '^shardwise: profile: --hosts needs a kernel with the queueing discipline netem, for --delay; got ' "$scratch/stderr" ||
    fail "--delay must work or be refused; got exit code $code: $(cat "$scratch/stderr")"
  [ "$(wc -l <"$scratch/stderr")" -eq 1 ] || fail "a refusal must be one line; got $(cat "$scratch/stderr")"
  ! unshare --net tc qdisc add dev lo root netem delay 1us 2>/dev/null || fail "--delay was refused, but this kernel has netem"
  echo "emulated_hosts: this kernel has no netem, and --delay is refused; delays themselves are NOT tested here"
fi
expect_nothing_left "a refusal"

code=0
setpriv --reuid 65534 --clear-groups "$build/shardwise" profile mlp --ranks 1,2 --hosts 2 2>"$scratch/stderr" || code=$?
[ "$code" -eq 2 ] && grep -q -- '--hosts needs root' "$scratch/stderr" || fail "others than root must be refused; got $code: $(cat "$scratch/stderr")"
code=0
ip netns add "shardwise-test-$$"  # of others: stays
PATH=/nowhere "$build/shardwise" profile mlp --ranks 1,2 --hosts 2 2>"$scratch/stderr" || code=$?
[ "$code" -eq 2 ] && grep -q -- '--hosts needs ip (Debian: iproute2); got none in PATH' "$scratch/stderr" || fail "missing programs must be refused; got $code: $(cat "$scratch/stderr")"
echo "emulated_hosts: a machine without what hosts need is refused in one line"

expect_end INT 130
expect_end TERM 143
expect_end KILL 137
begin
kill -9 "$(ip netns pids "shardwise-$job-2" | tail -1)"
code=0
wait "$job" || code=$?
[ "$code" -ne 0 ] || fail "a killed rank must end the run with an error"
expect_nothing_left "a killed rank"
ip netns list | grep -q "^shardwise-test-$$" || fail "namespaces of others must stay"
ip netns del "shardwise-test-$$"
echo "emulated_hosts: Ctrl-C, SIGTERM, SIGKILL and a killed rank leave no namespace, process or file"
