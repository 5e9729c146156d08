#!/bin/sh
# Reads {"number":"42"}, writes {"number":42,"digits":2}.
echo "subtask $TANIST_SUBTASK_INDEX of $TANIST_PARALLELISM counts digits" >&2
while read -r line; do
  number=${line#*:\"}
  number=${number%\"*}
  echo "{\"number\":$number,\"digits\":${#number}}"
done
