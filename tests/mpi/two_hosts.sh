#!/usr/bin/env bash
# Ranks that are really apart: two network namespaces of this machine with host names of their own, joined by a virtual
# cable, so that nothing but TCP gets from one to the other. Part of `make test-full`; needs root.
#
#   tests/mpi/two_hosts.sh BUILD
set -euo pipefail
build=$(cd "${1:?the directory of the build}" && pwd)
readonly build

readonly a=shardwise-a-$$ b=shardwise-b-$$ net=10.77.$(($$ % 250))
scratch=$(mktemp -d)
mpirun=$(command -v mpirun.openmpi || command -v mpirun || true)
readonly scratch mpirun
readonly limit=300  # seconds for one job: a hang is a failure

fail() { echo "two_hosts: $*" >&2; exit 1; }

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

lay_cable() {
  command -v ip >/dev/null || fail "needs iproute2 (Debian: iproute2)"
  [ -n "$mpirun" ] || fail "needs Open MPI (Debian: openmpi-bin)"
  ip netns add "$a" 2>"$scratch/refusal" && ip netns add "$b" 2>>"$scratch/refusal" ||
    fail "needs network namespaces (root, in a container --privileged); got: $(tail -1 "$scratch/refusal")"
  ip link add "va$$" type veth peer name "vb$$"
  plug "$a" "va$$" "$net.1"
  plug "$b" "vb$$" "$net.2"
}

# What mpirun starts the other host's ranks with, instead of ssh.
write_agent() {
  cat >"$scratch/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c "hostname host-b; \$*"
AGENT
  chmod +x "$scratch/agent"
}

# apart MAPPING COMMAND...: on four ranks, two a host.
apart() {
  local mapping=$1
  shift
  ip netns exec "$a" unshare --uts sh -c 'hostname host-a; exec "$@"' sh \
    timeout --kill-after 10 "$limit" "$mpirun" -n 4 --host "$net.1:2,$net.2:2" --map-by "$mapping" \
    --allow-run-as-root --bind-to none \
    --mca plm_rsh_agent "$scratch/agent" --mca orte_tmpdir_base "$scratch" --mca pml ob1 --mca btl self,vader,tcp \
    --mca btl_vader_single_copy_mechanism none -x OMP_NUM_THREADS=1 "$@"
}

expect_passed() {
  local said
  said=$("$@" 2>&1) || fail "$* failed: $said"
  [ "$(grep -c ': passed' <<<"$said")" -eq 4 ] || fail "$*: four ranks must pass; got $said"
}

# A program, as functions do not reach the other host: train LOG.
write_training() {
  head -c 20000 "$0" >"$scratch/text"
  cat >"$scratch/train" <<TRAIN
#!/bin/sh
exec "$build/shardwise" train --text "$scratch/text" --preset tiny --seq-len 32 --batch-size 2 --steps 3 --tp 4 --log "\$1"
TRAIN
  chmod +x "$scratch/train"
}

# The losses of all steps, within rounding.
check_losses() {
  paste <(grep -o '"loss": *[0-9.e+-]*' "$1") <(grep -o '"loss": *[0-9.e+-]*' "$2") | tr -d '":a-z' |
    awk '{d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-5 * $1) exit 1; n++} END {exit n != 3}' ||
    fail "losses must be those of one host; got $(cat "$1" "$2")"
}

some_live() {
  local pid
  for pid in "$@"; do
    ! kill -0 "$pid" 2>/dev/null || return 0
  done
  return 1
}

lay_cable
write_agent
for mapping in slot node; do
  expect_passed apart "$mapping" "$build/tests/mpi_ranks" --gtest_brief=1 --gtest_filter='*Collectives.*:FlatAnd*:Forms.*:*BytesBetweenHosts.*'
done
echo "two_hosts: collectives, and the bytes between hosts; ranks dealt host by host and in turn"

write_training
OMP_NUM_THREADS=1 "$scratch/train" "$scratch/one" 2>"$scratch/said" || fail "training on one host failed: $(cat "$scratch/said")"
for mapping in slot node; do
  apart "$mapping" "$scratch/train" "$scratch/two" 2>"$scratch/said" ||
    fail "training on two hosts failed: $(cat "$scratch/said")"
  check_losses "$scratch/one" "$scratch/two"
done
echo "two_hosts: training gives the losses of one host"

# The cable is pulled: whoever waits gives up after its two seconds. (mpirun itself then waits for its other half.)
apart slot "$build/tests/mpi_ranks" endless by_host 2>"$scratch/said" &
disown
for _ in $(seq 300); do [ "$(grep -c '^ready' "$scratch/said")" -lt 4 ] || break; sleep 0.1; done
mapfile -t ranks < <(sed -n 's/^ready \([0-9]*\) .*/\1/p' "$scratch/said")
[ "${#ranks[@]}" -eq 4 ] || fail "four ranks must start; got $(cat "$scratch/said")"
ip -n "$b" link set "vb$$" down
for _ in $(seq 300); do some_live "${ranks[@]}" || break; sleep 0.1; done
! some_live "${ranks[@]}" || fail "all ranks must end when hosts lose each other; got $(cat "$scratch/said")"
grep -q '#.* rank .* waited 2.* s of 2 s' "$scratch/said" || fail "ranks must say what they waited for; got $(cat "$scratch/said")"
echo "two_hosts: a pulled cable ends the ranks of both"
