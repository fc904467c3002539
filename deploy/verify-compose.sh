#!/usr/bin/env bash
# Reads every compose file, builds the image, starts the compose cluster, takes tasks through every
# node, a file from one to another and a callback to a receiver, kills a node, goes on without it,
# brings it back and waits until it has caught up. Leaves nothing behind but the image, whose layers
# make the next build short.
set -euo pipefail
cd "$(dirname "$0")/.."

if docker compose version >/dev/null 2>&1; then compose=(docker compose)
elif command -v docker-compose >/dev/null; then compose=(docker-compose)
else echo "verify-compose: neither \`docker compose\` nor docker-compose is here" >&2; exit 1; fi

project=codeq-verify-$$
work=$(mktemp -d)
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
read -r p1 p2 p3 p4 < <(python3 deploy/probe.py free-ports 4)
cat > "$work/env" <<END
CLUSTER_SECRET=$(secret)
WEBHOOK_HMAC_SECRET=$(secret)
WEBHOOKS_ALLOW_PRIVATE=true
PRODUCER_TOKEN=$(secret)
WORKER_TOKEN=$(secret)
ADMIN_TOKEN=$(secret)
OPERATOR_TOKEN=$(secret)
TENANT=main
SHARDS=4
N1_PORT=$p1
N2_PORT=$p2
N3_PORT=$p3
CODEQ_IMAGE=codeq-cluster:verify
CERTIFICATES=$work
END
set -a; . "$work/env"; set +a
url1=http://127.0.0.1:$p1 url2=http://127.0.0.1:$p2 url3=http://127.0.0.1:$p3

# The receiver of webhooks is one more container, so its address is private. It runs the image's
# Python and nothing of the broker.
cat > "$work/receiver.yml" <<END
services:
  receiver:
    image: $CODEQ_IMAGE
    entrypoint: [python3, /receiver.py, "9000"]
    command: []
    volumes: ["$PWD/deploy/receiver.py:/receiver.py:ro"]
    ports: ["127.0.0.1:$p4:9000"]
    healthcheck: {disable: true}
    read_only: true
    cap_drop: [ALL]
END
hook=http://receiver:9000/hook heard=http://127.0.0.1:$p4/heard

run() {
  "${compose[@]}" --env-file "$work/env" -p "$project" \
    -f docker-compose.yml -f "$work/receiver.yml" "$@"
}
inside() { run exec -T -e CODEQ_TOKEN="$1" "$2" codeq-cluster "${@:3}"; }
step() { echo "verify-compose: $*"; }

finish() {
  code=$?
  trap - EXIT
  if [ "$code" -ne 0 ]; then
    run ps || true
    run logs --tail 60 || true
  fi
  run down --volumes --timeout 20 >/dev/null 2>&1 || true
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

healthy() {
  for node in "$@"; do
    id=$(run ps -q "$node")
    for _ in $(seq 120); do
      [ "$(docker inspect --format '{{.State.Health.Status}}' "$id")" = healthy ] && continue 2
      sleep 0.5
    done
    echo "verify-compose: $node is not healthy after 60 s" >&2
    return 1
  done
}

step "read every compose file"
for file in deploy/compose/*.yml; do
  "${compose[@]}" --env-file "$work/env" -p "$project" -f "$file" config --quiet
done
run --profile obs config --quiet
step "build"
docker build --quiet --network host -t "$CODEQ_IMAGE" . >/dev/null
step "start three nodes"
run up -d --no-build >/dev/null
healthy n1 n2 n3
python3 deploy/probe.py caught-up "$url1" "$url2" "$url3"
step "a task through each node"
python3 deploy/probe.py cycle "$url1" "$url2" "$url3"
step "a file stored through n1 is read through n3"
python3 deploy/probe.py artifact "$url1" "$url3"
step "a callback's signature verifies"
python3 deploy/probe.py callback "$hook" "$heard" "$url2"
step "the doctor finds both in place"
found=$(inside "$OPERATOR_TOKEN" n1 doctor --url http://127.0.0.1:8080)
for line in "artifacts *http.*: kept in a directory" "webhooks *http.*: signed" \
  "artifacts *environment: kept in a directory" "webhooks *environment: signed"; do
  grep -q "^ok *$line" <<< "$found" || { echo "verify-compose: $found" >&2; exit 1; }
done
step "a backup by n1, seen by n3, and what it has of the tenant into the cluster again"
inside "$OPERATOR_TOKEN" n1 backup create --url http://127.0.0.1:8080
inside "$OPERATOR_TOKEN" n3 backup verify --in /backup
inside "$ADMIN_TOKEN" n3 import /backup --tenant "$TENANT" --url http://127.0.0.1:8080
step "the operator commands the cluster, the admin does not"
inside "$OPERATOR_TOKEN" n1 cluster status --url http://127.0.0.1:8080
inside "$OPERATOR_TOKEN" n1 audit --url http://127.0.0.1:8080 | grep -q backup.create
code=0
inside "$ADMIN_TOKEN" n1 cluster status --url http://127.0.0.1:8080 2>/dev/null || code=$?
[ "$code" = 3 ] || { echo "verify-compose: the admin was not refused, exit code $code" >&2; exit 1; }
step "kill n2, a task through each of the others"
docker kill "$(run ps -q n2)" >/dev/null
python3 deploy/probe.py cycle "$url1" "$url3"
python3 deploy/probe.py artifact "$url3" "$url1"
python3 deploy/probe.py callback "$hook" "$heard" "$url3"
step "bring n2 back"
run up -d --no-build n2 >/dev/null
healthy n2
python3 deploy/probe.py caught-up "$url1" "$url2" "$url3"
step "a task through each node again"
python3 deploy/probe.py cycle "$url1" "$url2" "$url3"
step "stop, and every node ends cleanly"
ids=$(run ps -q n1 n2 n3)
run stop --timeout 25 >/dev/null 2>&1
for id in $ids; do
  code=$(docker inspect --format '{{.State.ExitCode}}' "$id")
  [ "$code" = 0 ] || { echo "verify-compose: a node ended with exit code $code" >&2; exit 1; }
done
step "look into a stopped node"
run run --rm --no-deps -T --entrypoint codeq-cluster n1 inspect /data
step "all held"
