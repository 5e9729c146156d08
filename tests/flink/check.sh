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
"$program" jobmanager "${options[@]}" 2>"$work/jobmanager.log" &
started+=($!)
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
fail() {
    echo "FAILED: $1"
    exit 1
}

endless=$(tanist run --detached "$here/endless.yaml")
tanist run "$here/finished.yaml" 2>/dev/null
tanist run "$here/broken.yaml" 2>/dev/null && fail "broken.yaml did not fail"
until tanist -o json info "$endless" | grep -q '"RUNNING": 2'; do :; done

echo "== answers while a job runs"
read_all || fail "Flink's classes refuse answers"
echo "== flink list"
flink list -m "$rest" | grep "$endless" || fail "flink list does not show the job"
echo "== flink stop"
flink stop "$endless" -m "$rest" >"$work/stop.txt" && fail "a stop without drain was accepted"
grep -m 1 "stop with drain" "$work/stop.txt" || fail "flink stop does not say what can be done: $(cat "$work/stop.txt")"
echo "== flink stop --drain"
flink stop --drain "$endless" -m "$rest" || fail "flink stop --drain ends with an error"
tanist info "$endless" | grep FINISHED || fail "the job has not finished"
echo "== answers when all jobs have ended"
read_all || fail "Flink's classes refuse answers"
