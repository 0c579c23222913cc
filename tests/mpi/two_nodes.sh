#!/usr/bin/env bash
# Ranks on two real nodes: two network namespaces of this machine with their own host names, connected by a veth pair, so
# that only TCP crosses between them. Part of `make test-full`; needs root.
#
#   tests/mpi/two_nodes.sh BUILD
set -euo pipefail
build=$(cd "${1:?the directory of the build}" && pwd)
readonly build

readonly a=shardwise-a-$$ b=shardwise-b-$$ net=10.77.$(($$ % 250))
scratch=$(mktemp -d)
mpirun=$(command -v mpirun.openmpi || command -v mpirun || true)
readonly scratch mpirun
readonly limit=300  # seconds for one job: a hang is a failure

fail() { echo "two_nodes: $*" >&2; exit 1; }

clean_up() {
  local namespace
  for namespace in "$a" "$b"; do
    ip netns pids "$namespace" 2>/dev/null | xargs -r kill -9 || true
    ip netns del "$namespace" 2>/dev/null || true
  done
  rm -rf "$scratch"
}
trap clean_up EXIT

# plug NAMESPACE INTERFACE ADDRESS
plug() {
  ip link set "$2" netns "$1"
  ip -n "$1" addr add "$3/24" dev "$2"
  ip -n "$1" link set "$2" up
  ip -n "$1" link set lo up
}

connect_namespaces() {
  command -v ip >/dev/null || fail "needs iproute2 (Debian: iproute2)"
  [ -n "$mpirun" ] || fail "needs Open MPI (Debian: openmpi-bin)"
  ip netns add "$a" 2>"$scratch/refusal" && ip netns add "$b" 2>>"$scratch/refusal" ||
    fail "needs network namespaces (root, in a container --privileged); got: $(tail -1 "$scratch/refusal")"
  ip link add "va$$" type veth peer name "vb$$"
  plug "$a" "va$$" "$net.1"
  plug "$b" "vb$$" "$net.2"
}

# Writes the command by which mpirun starts ranks on the other node, instead of ssh.
write_agent() {
  cat >"$scratch/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c "hostname host-b; \$*"
AGENT
  chmod +x "$scratch/agent"
}

# on_two_nodes MAPPING COMMAND...: runs COMMAND on four ranks, two per node.
on_two_nodes() {
  local mapping=$1
  shift
  ip netns exec "$a" unshare --uts sh -c 'hostname host-a; exec "$@"' sh \
    timeout --kill-after 10 "$limit" "$mpirun" -n 4 --host "$net.1:2,$net.2:2" --map-by "$mapping" \
    --allow-run-as-root --bind-to none \
    --mca plm_rsh_agent "$scratch/agent" --mca orte_tmpdir_base "$scratch" --mca pml ob1 --mca btl self,vader,tcp \
    --mca btl_vader_single_copy_mechanism none -x OMP_NUM_THREADS=1 "$@"
}

expect_passed() {
  local output
  output=$("$@" 2>&1) || fail "$* failed: $output"
  [ "$(grep -c ': passed' <<<"$output")" -eq 4 ] || fail "$*: four ranks must pass; got $output"
}

# Writes the program `train LOG`: shell functions do not exist on the other node.
write_training() {
  head -c 20000 "$0" >"$scratch/text"
  cat >"$scratch/train" <<TRAIN
#!/bin/sh
exec "$build/shardwise" train --text "$scratch/text" --preset tiny --seq-len 32 --batch-size 2 --steps 3 --tp 4 --log "\$1"
TRAIN
  chmod +x "$scratch/train"
}

# Checks that the losses of all steps agree within rounding.
check_losses() {
  paste <(grep -o '"loss": *[0-9.e+-]*' "$1") <(grep -o '"loss": *[0-9.e+-]*' "$2") | tr -d '":a-z' |
    awk '{d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-5 * $1) exit 1; n++} END {exit n != 3}' ||
    fail "losses must equal those of one node; got $(cat "$1" "$2")"
}

any_alive() {
  local pid
  for pid in "$@"; do
    ! kill -0 "$pid" 2>/dev/null || return 0
  done
  return 1
}

connect_namespaces
write_agent
for mapping in slot node; do
  expect_passed on_two_nodes "$mapping" "$build/tests/mpi_ranks" --gtest_brief=1 --gtest_filter='*Collectives.*:FlatAnd*:C10dApi.*:*BytesBetweenNodes.*'
done
echo "two_nodes: collectives and the bytes between nodes pass, with ranks mapped by slot and by node"

write_training
OMP_NUM_THREADS=1 "$scratch/train" "$scratch/one" 2>"$scratch/stderr" || fail "training on one node failed: $(cat "$scratch/stderr")"
for mapping in slot node; do
  on_two_nodes "$mapping" "$scratch/train" "$scratch/two" 2>"$scratch/stderr" ||
    fail "training on two nodes failed: $(cat "$scratch/stderr")"
  check_losses "$scratch/one" "$scratch/two"
done
echo "two_nodes: training matches the losses of one node"

# Takes the link down: ranks that wait time out after two seconds. mpirun waits until TCP abandons its other daemon (docs/cli.md).
for namespace in "$a" "$b"; do ip netns exec "$namespace" sysctl -qw net.ipv4.tcp_retries2=5; done
on_two_nodes slot "$build/tests/mpi_ranks" endless hierarchical 2>"$scratch/stderr" &
readonly job=$!
disown
for _ in $(seq 300); do [ "$(grep -c '^ready' "$scratch/stderr")" -lt 4 ] || break; sleep 0.1; done
mapfile -t ranks < <(sed -n 's/^ready \([0-9]*\) .*/\1/p' "$scratch/stderr")
[ "${#ranks[@]}" -eq 4 ] || fail "four ranks must start; got $(cat "$scratch/stderr")"
ip -n "$b" link set "vb$$" down
for _ in $(seq 300); do any_alive "${ranks[@]}" || break; sleep 0.1; done
! any_alive "${ranks[@]}" || fail "all ranks must exit when the nodes lose each other; got $(cat "$scratch/stderr")"
grep -q '#.* rank .* waited 2.* s of 2 s' "$scratch/stderr" || fail "ranks must report what they waited for; got $(cat "$scratch/stderr")"
echo "two_nodes: the ranks of both nodes exit when the link goes down"
for _ in $(seq 600); do any_alive "$job" || break; sleep 0.1; done
! any_alive "$job" || fail "mpirun must end when TCP abandons its daemon; got $(cat "$scratch/stderr")"
echo "two_nodes: mpirun ends"
