#!/usr/bin/env bash
# Runs Flink's own REST client, message classes and CLI against a Tanist cluster: `cargo xtask flink`
# builds the program and calls this.
#
#   tests/flink/check.sh PROGRAM [DIRECTORY]
#
# Needs a JDK, pip and python3, and once a download of 330 MB into DIRECTORY (target/flink): the jars of
# PyPI's apache-flink-libraries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "$1")
flink=2.3.0
kept=$(realpath -m "${2:-$here/../../target/flink}")
mkdir -p "$kept/classes" "$kept/conf"

if ! compgen -G "$kept/pyflink/lib/flink-dist-*.jar" >/dev/null; then
    pip download "apache-flink-libraries==$flink" --no-deps --dest "$kept"
    python3 -m zipfile -e "$kept"/apache_flink_libraries-"$flink"-*.whl "$kept"
fi
javac -d "$kept/classes" -cp "$kept/pyflink/lib/*" "$here/ReadAnswers.java"
printf 'rest.address: 127.0.0.1\nrest.port: 1\n' >"$kept/conf/config.yaml"

work=$(mktemp -d)
started=()
end() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap end EXIT

rest=127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
options=(
    -D high-availability.type=embedded -D "high-availability.embedded.dir=$work/store" -D "process.working-dir=$work/process"
    -D "rest.port=${rest#*:}" -D "rest.bind-port=${rest#*:}" -D jobmanager.rpc.port=0 -D jobmanager.peer.port=0
)
start_jobmanager() {
    "$program" jobmanager "${options[@]}" 2>>"$work/jobmanager.log" &
    jobmanager=$!
    started+=("$jobmanager")
}
start_jobmanager
"$program" taskmanager "${options[@]}" -D taskmanager.numberOfTaskSlots=4 2>"$work/taskmanager.log" &
started+=($!)

tanist() { "$program" --address "$rest" "$@"; }
flink() {
    FLINK_CONF_DIR=$kept/conf java -cp "$kept/pyflink/lib/*" org.apache.flink.client.cli.CliFrontend "$@" 2>&1 |
        grep -v -e SLF4J -e '^WARNING'
    return "${PIPESTATUS[0]}"
}
read_all() {
    java -cp "$kept/pyflink/lib/*:$kept/classes" ReadAnswers "$rest" 2>&1 | grep -v -e SLF4J -e '^[[:space:]]*at ' -e 'ERROR \[\]'
    return "${PIPESTATUS[0]}"
}
# The status of a savepoint by the id of its request, as Flink's classes read it.
read_savepoint() {
    java -cp "$kept/pyflink/lib/*:$kept/classes" ReadAnswers "$rest" "$1" "$2" 2>&1 | grep -v -e SLF4J
    return "${PIPESTATUS[0]}"
}
fail() {
    echo "FAILED: $1"
    exit 1
}

# Prints what a Flink command says, and fails with it.
succeeds() {
    flink "$@" -m "$rest" | tee "$work/said.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || fail "flink $1 ends with an error"
}
# A Flink command is refused in these words.
is_refused() {
    local words=$1
    shift
    flink "$@" -m "$rest" >"$work/said.txt" && fail "flink $1 is not refused"
    grep -m 1 -o "$words.*" "$work/said.txt" || fail "flink $1 does not say \"$words\": $(cat "$work/said.txt")"
}
# The path of the savepoint that the last command has printed.
said_path() {
    sed -n 's/.*\(Path: \|stored in \)\(.*[^.]\)\.\?$/\2/p' "$work/said.txt"
}
has_completed() {
    tanist -o json checkpoints "$1" | grep -q '"status": "COMPLETED"'
}

endless=$(tanist run --detached "$here/endless.yaml")
tanist run "$here/finished.yaml" 2>/dev/null
tanist run "$here/broken.yaml" 2>/dev/null && fail "broken.yaml did not fail"
until tanist -o json info "$endless" | grep -q '"RUNNING": 2'; do :; done

checkpointed=$(tanist run --detached "$here/checkpointed.yaml")
until has_completed "$checkpointed"; do :; done

echo "== answers while jobs run"
read_all | tee "$work/read.txt" || fail "Flink's classes refuse answers"
grep -q "details/[0-9]*/subtasks/:id of checkpointed, RUNNING: 2 of 2 subtasks" "$work/read.txt" ||
    fail "no checkpoint has subtasks"
echo "== flink list"
flink list -m "$rest" | grep "$endless" || fail "flink list does not show the job"
echo "== flink savepoint of a job without checkpoints"
is_refused "set \`checkpoints\`" savepoint "$endless" "$work/savepoints"
echo "== flink stop"
flink stop "$endless" -m "$rest" >"$work/stop.txt" && fail "a stop without drain was accepted"
grep -m 1 "stop with drain" "$work/stop.txt" || fail "flink stop does not say what can be done: $(cat "$work/stop.txt")"
echo "== flink stop --drain"
flink stop --drain "$endless" -m "$rest" || fail "flink stop --drain ends with an error"
tanist info "$endless" | grep FINISHED || fail "the job has not finished"
echo "== flink savepoint"
is_refused "it is not known where to write the savepoint" savepoint "$checkpointed"
is_refused "take a savepoint" checkpoint "$checkpointed"
succeeds savepoint "$checkpointed" "$work/savepoints"
savepoint=$(said_path)
tanist savepoint inspect "$savepoint" --verify >"$work/said.txt" || fail "it is damaged: $savepoint"

echo "== flink savepoint -detached, and its status under the next leader"
succeeds savepoint "$checkpointed" "$work/savepoints" -type native -detached
trigger=$(sed -n 's/.*triggerId: //p' "$work/said.txt")
kill -9 "$jobmanager"
start_jobmanager
until read_savepoint "$checkpointed" "$trigger" >"$work/said.txt"; do :; done
grep "COMPLETED: $work/savepoints/" "$work/said.txt" || fail "its trigger id is forgotten: $(cat "$work/said.txt")"

echo "== flink stop --savepointPath"
succeeds stop "$checkpointed" --savepointPath "$work/savepoints"
stopped=$(said_path)
tanist info "$checkpointed" | grep FINISHED || fail "the job has not finished"
is_refused "has already ended: FINISHED" stop "$checkpointed" --savepointPath "$work/savepoints"
is_refused "has already ended: FINISHED" savepoint "$checkpointed" "$work/savepoints"

echo "== a job goes on from there"
continued=$(tanist run --detached --from-savepoint "$stopped" "$here/checkpointed.yaml")
until has_completed "$continued"; do :; done

echo "== flink savepoint --dispose"
succeeds savepoint --dispose "$savepoint"
[ ! -e "$savepoint" ] || fail "it is still there: $savepoint"
is_refused "there is no savepoint" savepoint --dispose "$savepoint"

echo "== flink cancel --withSavepoint"
succeeds cancel --withSavepoint "$work/savepoints" "$continued"
tanist savepoint inspect "$(said_path)" --verify >"$work/said.txt" || fail "there is no savepoint"
echo "== answers when all jobs have ended"
read_all || fail "Flink's classes refuse answers"
