# What each pod of a cell runs: the first is the cell, the others start ranks for it and hold their part of its engine.
#   cell.sh        be it
#   cell.sh well   whether it is well
set -eu
if [ "${1:-}" = well ]; then
  if [ "$GYRE_NODE" = 0 ]; then exec healthy /health; fi
  exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/7400'
fi
for file in /keys/*; do
  if [ -f "$file" ]; then export "${file##*/}=$(cat "$file")"; fi
done
cell=cell-$GYRE_CELL
nodes=
for node in 0 1 2 3; do nodes=$nodes$cell-$node.$cell:7400,; done
export GYRE_CELL_NODES="${nodes%,}"
if [ "$GYRE_NODE" = 0 ]; then
  gyre node --port 7400 & # ranks of this node are started as those of the others are
  exec gyre serve cell --edge --folder "/runs/$GYRE_RUN" --cell "$GYRE_CELL"
fi
exec gyre node --port 7400 -- /opt/sglang/bin/python -m sglang.launch_server \
  --model-path "$GYRE_MODEL" --skip-tokenizer-init --skip-server-warmup --weight-version none $GYRE_ENGINE \
  --nnodes=4 --node-rank="$GYRE_NODE" --dist-init-addr="$cell-0.$cell:7500"
