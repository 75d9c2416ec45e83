#!/usr/bin/env bash
# One walk by two ranks in network namespaces of their own, with an address each, over a virtual cable.
# Needs root and iproute2: sudo tests/two_namespaces.sh; leaves nothing behind. PYTHON says which Python.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
folder=$(mktemp -d)
one=ranks-$$-a two=ranks-$$-b
cleanup() {
    ip netns delete "$one" 2>/dev/null || true
    ip netns delete "$two" 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT

ip netns add "$one"
ip netns add "$two"
ip link add "va$$" netns "$one" type veth peer name "vb$$" netns "$two"
ip -n "$one" addr add 10.99.0.1/24 dev "va$$"
ip -n "$two" addr add 10.99.0.2/24 dev "vb$$"
for pair in "$one va$$" "$two vb$$"; do
    read -r namespace card <<<"$pair"
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set "$card" up
done

node() { # of which rank, namespace and card
    GLOO_SOCKET_IFNAME=$3 OMP_NUM_THREADS=1 ip netns exec "$2" "$python" -m torch.distributed.run --nnodes 2 \
        --node-rank "$1" --nproc-per-node 1 --master-addr 10.99.0.1 --master-port 29500 \
        -m tests.ranked_script "$folder"
}

node 0 "$one" "va$$" &
first=$!
node 1 "$two" "vb$$"
wait "$first"
"$python" - "$folder" <<'END'
import sys
import torch

first, second = (torch.load(f"{sys.argv[1]}/found.{rank}.pt") for rank in (0, 1))
assert all(torch.equal(value, second[name]) for name, value in first.items())
print(f"two namespaces: both ranks have the same {len(first['thetas'])} walks")
END
