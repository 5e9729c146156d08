//! The exact messages for wrong job files.

use super::{graph_of, message_of, options, with_steps};

const END: &str = "  - name: out\n    discard: {}\n";
const LINES: &str = "  - name: lines\n    file-source: {paths: a.txt}\n";
const NUMBERS: &str = "  - name: numbers\n    datagen: {count: 9}\n";

/// Asserts the message for a job with these steps.
fn says(steps: &[&str], message: &str) {
    let text = with_steps(&steps.concat());
    assert_eq!(message_of(&text, &options()), message, "\n{text}");
}

/// Asserts the message for this whole file.
fn file_says(text: &str, message: &str) {
    assert_eq!(message_of(text, &options()), message, "\n{text}");
}

#[test]
fn a_file_that_is_no_job() {
    file_says(
        "",
        "job.yaml: line 1, column 1: a job file is a map of fields, but this is empty: begin with `version: 1`",
    );
    file_says(
        "- a\n",
        "job.yaml: line 1, column 1: a job file is a map of fields, but this is a list: begin with `version: 1`",
    );
    file_says(
        "version: 1\nname: [",
        "job.yaml: line 2, column 7: unclosed bracket '['",
    );
    file_says(
        "version: 1\nname: a\nname: b\n",
        "job.yaml: line 3, column 1: the field `name` is there twice: write it once",
    );
    file_says(
        "version: 2\nname: a\nsteps: []\n",
        "job.yaml: line 1, column 10: `version` is `2`, which is not known here: write `version: 1`",
    );
    let text = "version: 2\nname: a\nanything: 1\nsteps: []\n";
    let message = message_of(text, &options());
    let each_once = "a job has no field `anything`; there is: version, name, description, ";
    assert!(message.contains(each_once), "{message}");
    file_says(
        "version: 1\nname: a\nstep: []\n",
        "job.yaml has 2 problems:
  line 1, column 1: it has no steps: write at least a source and a sink under `steps`
  line 3, column 1: a job has no field `step`; did you mean `steps`?",
    );
    file_says(
        "name: a\nsteps: {}\n",
        "job.yaml has 2 problems:
  line 1, column 1: `version` is missing: write `version: 1`
  line 2, column 8: `steps` is a map of fields: write a list, each step beginning with `- `",
    );
    file_says(
        "version: 1\nname: ''\nparalelism: 2\nsteps:\n  - datagen:\n  - discard:\n",
        "job.yaml has 2 problems:
  the job's name is empty: write one
  line 3, column 1: a job has no field `paralelism`; did you mean `parallelism`?",
    );
}

#[test]
fn operators_and_fields_that_are_not_there() {
    says(
        &[LINES, "  - name: w\n    split-word: {column: line}\n", END],
        "job.yaml: line 7, column 5: step `w`: there is no operator `split-word`; did you mean `split-words`?",
    );
    says(
        &[LINES, "  - name: w\n    join: {}\n", END],
        "job.yaml: line 7, column 5: step `w`: there is no operator `join`; there is: file-source, datagen, split-words, filter, sample, map, project, key-by, count, sum, print, file-sink, discard, stdin-source, socket-source, parse-json, parse-csv, format-json, format-csv, flat-map-regex, watermarks, min, max, average, aggregate, socket-sink, exec, exec-source, exec-sink, custom",
    );
    says(
        &[LINES, "  - name: w\n", END],
        "job.yaml: line 6, column 5: step `w`: it has no operator: write one of file-source, datagen, split-words, filter, sample, map, project, key-by, count, sum, print, file-sink, discard, stdin-source, socket-source, parse-json, parse-csv, format-json, format-csv, flat-map-regex, watermarks, min, max, average, aggregate, socket-sink, exec, exec-source, exec-sink, custom",
    );
    says(
        &[LINES, "  - hello\n", END],
        "job.yaml: line 6, column 5: step `#2`: a step is a map with an operator, not `hello`: write for example `- split-words: { column: line }`",
    );
    says(
        &[LINES, "  - name: w\n    count: {}\n    discard: {}\n"],
        "job.yaml: line 8, column 5: step `w`: it has two operators, `count` and `discard`: make two steps of it",
    );
    says(
        &[LINES, "  - name: w\n    split-words: {colum: line}\n", END],
        "job.yaml has 2 problems:
  line 7, column 18: step `w`: `column` is missing: write `column: line`
  line 7, column 19: step `w`: split-words has no field `colum`; did you mean `column`?",
    );
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    paralellism: 2\n",
        ],
        "job.yaml: line 8, column 5: step `out`: a step has no field `paralellism`; did you mean `parallelism`?",
    );
    says(
        &["  - name: n\n    datagen: {rate: fast, keys: -1}\n", END],
        "job.yaml has 2 problems:
  line 5, column 21: step `n`: `rate` is `fast`: write a whole number of at least 0
  line 5, column 33: step `n`: `keys` is `-1`: write a whole number of at least 0",
    );
    says(&["  - name: n\n    datagen: {rate: 0, keys: 0}\n", END], "job.yaml has 2 problems:
  line 4, column 5: step `n`: `rate` is 0: write at least 1 record a second, or leave it out for as fast as possible
  line 4, column 5: step `n`: `keys` is 0: write a number from 1 to 9223372036854775807");
    says(
        &["  - name: n\n    file-source: {paths: []}\n", END],
        "job.yaml: line 4, column 5: step `n`: `paths` is empty: write at least one path or glob",
    );
    says(
        &["  - name: n\n    file-source: {paths: 'a[*.txt'}\n", END],
        "job.yaml: line 4, column 5: step `n`: `a[*.txt` is no valid glob: invalid range pattern",
    );
    says(
        &["  - name: n\n    file-source: a.txt\n", END],
        "job.yaml: line 5, column 18: step `n`: fields are expected, not `a.txt`: write `{ field: value }`",
    );
    says(
        &[LINES, "  - name: out\n    file-sink: {path: ''}\n"],
        "job.yaml: line 6, column 5: step `out`: `path` is empty: write the directory for the output",
    );
    says(
        &[
            LINES,
            "  - name: out\n    file-sink: {path: x, commit: checkpont, roll: {size: 5, megabytes: 1}}\n",
        ],
        "job.yaml has 3 problems:
  line 7, column 34: step `out`: `commit` can't be `checkpont`; did you mean `checkpoint`?
  line 7, column 58: step `out`: `size` is `5`: write a number and a unit, such as `512 mb` or `2 gb`
  line 7, column 61: step `out`: roll has no field `megabytes`; there is: size, interval",
    );
    says(
        &[
            LINES,
            "  - name: out\n    file-sink: {path: x, commit: end, roll: {size: 0 b, interval: 2 d}}\n",
        ],
        "job.yaml has 3 problems:
  line 6, column 5: step `out`: `roll.size` must be at least 1 byte
  line 6, column 5: step `out`: `roll.interval` must be at most 1 d
  line 6, column 5: step `out`: `roll` has no effect with `commit: end`, where a subtask writes one part: remove one of them",
    );
    says(
        &[
            LINES,
            "  - name: out\n    file-sink: {path: x, roll: {size: 1 mb}}\n",
        ],
        "job.yaml: line 6, column 5: step `out`: `roll` has no effect in a job whose sources all end, where a subtask writes one part: write `commit: checkpoint`, or remove it",
    );
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    partition: hash\n",
        ],
        "job.yaml: line 8, column 16: step `out`: `partition: hash` needs to know by what: put a `key-by: { columns: [...] }` step before it",
    );
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    partition: forwrd\n",
        ],
        "job.yaml: line 8, column 16: step `out`: `partition` can't be `forwrd`; did you mean `forward`?",
    );
}

#[test]
fn steps_that_do_not_fit_together() {
    says(&[END], "job.yaml has 2 problems:
  it has no source: begin with a file-source or datagen step
  line 4, column 5: step `out`: it has no input: put a source before it (file-source or datagen) or name a step with `input`");
    says(
        &[LINES],
        "job.yaml: line 4, column 5: step `lines`: no step reads it and it is no sink: add a sink after it (file-sink, print or discard) or remove it",
    );
    says(
        &[LINES, END, "  - name: again\n    print: {}\n"],
        "job.yaml: line 8, column 5: step `again`: the step before it, `out`, is a sink and emits nothing: name the step that it reads with `input`",
    );
    says(
        &[LINES, "  - name: out\n    discard: {}\n    input: line\n"],
        "job.yaml: line 6, column 5: step `out`: there is no step `line` for it to read: did you mean `lines`?",
    );
    says(&[LINES, "  - name: out\n    discard: {}\n    input: elsewhere\n"], "job.yaml has 2 problems:
  line 4, column 5: step `lines`: no step reads it and it is no sink: add a sink after it (file-sink, print or discard) or remove it
  line 6, column 5: step `out`: there is no step `elsewhere` for it to read: there is: lines");
    says(&[LINES, "  - name: out\n    discard: {}\n    inputs: []\n"], "job.yaml has 2 problems:
  line 4, column 5: step `lines`: no step reads it and it is no sink: add a sink after it (file-sink, print or discard) or remove it
  line 6, column 5: step `out`: it has no input: name the step that it reads with `input`");
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    inputs: [lines, lines]\n",
        ],
        "job.yaml: line 6, column 5: step `out`: it reads `lines` twice: name it once",
    );
    says(&[LINES, "  - name: more\n    datagen: {}\n    input: lines\n", END], "job.yaml has 2 problems:
  line 4, column 5: step `lines`: no step reads it and it is no sink: add a sink after it (file-sink, print or discard) or remove it
  line 6, column 5: step `more`: a datagen has no input: remove `input`");
    says(
        &[LINES, END, "  - name: p\n    print: {}\n    input: out\n"],
        "job.yaml: line 8, column 5: step `p`: it reads `out`, a sink, which emits nothing: name another step",
    );
    says(
        &[LINES, "  - name: lines\n    discard: {}\n"],
        "job.yaml: line 6, column 5: step `lines`: another step has this name already: give each step a `name` of its own",
    );
    says(
        &[
            LINES,
            NUMBERS,
            "  - name: out\n    discard: {}\n    inputs: [lines, numbers]\n",
        ],
        "job.yaml: line 8, column 5: step `out`: its inputs are not alike: `lines` emits (line: string), `numbers` emits (seq: int64, key: int64, value: int64); read only steps that emit the same columns",
    );
    says(
        &[
            LINES,
            END,
            "  - name: a\n    split-words: {column: word}\n    input: b\n",
            "  - name: b\n    split-words: {column: word}\n    input: a\n",
        ],
        "job.yaml: line 8, column 5: step `a`: it reads its own output (`a` reads `b` reads `a`): break the cycle with another `input`",
    );
    says(
        &[
            LINES,
            "  - name: a\n    file-sink: {path: x}\n",
            "  - name: b\n    file-sink: {path: x/}\n    input: lines\n",
        ],
        "job.yaml: line 8, column 5: step `b`: it writes into `x/` like `a`: give each file-sink a directory of its own",
    );
}

#[test]
fn types_that_do_not_fit() {
    says(
        &[
            LINES,
            "  - name: w\n    split-words: {column: lines}\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `w`: column `lines` is not in its input (line: string); did you mean `line`?",
    );
    says(
        &[
            NUMBERS,
            "  - name: w\n    split-words: {column: key}\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `w`: column `key` is int64, but string is needed; its input (seq: int64, key: int64, value: int64) has no such column",
    );
    says(
        &[
            LINES,
            "  - name: k\n    key-by: {columns: [word, line, line]}\n",
            "  - count:\n",
            END,
        ],
        "job.yaml has 2 problems:
  line 6, column 5: step `k`: column `word` is not in its input (line: string); there is: line
  line 6, column 5: step `k`: column `line` is given twice: write it once",
    );
    says(
        &[
            LINES,
            "  - name: k\n    key-by: {columns: []}\n",
            "  - count:\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `k`: `columns` is empty: name at least one column",
    );
    says(
        &[
            LINES,
            "  - name: f\n    filter: {column: line, op: is, value: 1}\n",
            END,
        ],
        "job.yaml: line 7, column 32: step `f`: `op` can't be `is`; there is: eq, ne, lt, le, gt, ge, contains, starts-with",
    );
    says(
        &[
            NUMBERS,
            "  - name: f\n    filter: {column: key, op: eq, value: x}\n",
            END,
        ],
        r#"job.yaml: line 6, column 5: step `f`: `value` is "x", but column `key` is int64: write an integer"#,
    );
    says(
        &[
            NUMBERS,
            "  - name: f\n    filter: {column: key, op: contains, value: 1}\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `f`: `contains` does not compare column `key`, which is int64; use one of: eq, ne, lt, le, gt, ge",
    );
    says(
        &[
            LINES,
            "  - name: k\n    key-by: {columns: line}\n",
            "  - name: s\n    sum: {column: line}\n",
            END,
        ],
        "job.yaml: line 8, column 5: step `s`: column `line` is string, but a number is needed; its input (line: string) has no such column",
    );
    says(
        &[NUMBERS, "  - name: s\n    sum: {column: value}\n", END],
        "job.yaml: line 6, column 5: step `s`: sum works by key: put a `key-by: { columns: [...] }` step before it",
    );
    says(
        &[LINES, "  - name: c\n    count: {}\n", END],
        "job.yaml: line 6, column 5: step `c`: count works by key: put a `key-by: { columns: [...] }` step before it",
    );
}

#[test]
fn keys_and_partitions_that_contradict_each_other() {
    says(
        &[
            LINES,
            "  - name: k\n    key-by: {columns: line}\n    parallelism: 2\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `k`: a key-by is no operator and has no `parallelism`: write it in the step that reads it",
    );
    says(
        &[
            LINES,
            "  - name: k\n    key-by: {columns: line}\n",
            "  - name: out\n    discard: {}\n    partition: rebalance\n",
        ],
        "job.yaml: line 8, column 5: step `out`: `partition: rebalance` contradicts the key-by `k` that it reads: remove one of the two",
    );
    says(
        &[
            LINES,
            "  - name: k\n    key-by: {columns: line}\n",
            "  - name: l\n    key-by: {columns: line}\n",
            END,
        ],
        "job.yaml: line 8, column 5: step `l`: it reads the key-by `k`, which would have no effect: remove one of the two",
    );
    says(
        &[
            "  - datagen: {}\n",
            "  - key-by: {columns: key}\n",
            "  - count: {emit: final}\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `count`: `emit: final` waits for the end of its input, which never ends: write `emit: updates`",
    );
    says(
        &[
            NUMBERS,
            "  - name: k\n    key-by: {columns: key}\n",
            "  - name: out\n    discard: {}\n    inputs: [numbers, k]\n",
        ],
        "job.yaml: line 8, column 5: step `out`: it reads `numbers` in two ways: remove one",
    );
}

#[test]
fn parallelism_that_cannot_be() {
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    parallelism: 0\n",
        ],
        "job.yaml: line 6, column 5: step `out`: its parallelism is 0: write a number from 1 to 128",
    );
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    parallelism: 129\n",
        ],
        "job.yaml: line 6, column 5: step `out`: its parallelism is 129, above the maximum of 128: write less, or a larger `max-parallelism` for the job",
    );
    says(
        &[
            LINES,
            "  - name: out\n    discard: {}\n    parallelism: 2\n    partition: forward\n",
        ],
        "job.yaml: line 6, column 5: step `out`: `partition: forward` needs equal parallelism, but it has 2 and `lines` has 1: make them equal or write `partition: rebalance`",
    );
    let job = "version: 1\nname: a\nparallelism: 0\nmax-parallelism: 32769\nsteps:\n";
    file_says(
        &[job, LINES, END].concat(),
        "job.yaml: the maximum parallelism is 32769: write a number from 1 to 32768",
    );
    let job = "version: 1\nname: a\nparallelism: 0\nsteps:\n";
    file_says(
        &[job, LINES, END].concat(),
        "job.yaml: the parallelism of the job is 0: write a number from 1 to 128",
    );
    let job = "version: 1\nname: a\nparallelism: 30000\nmax-parallelism: 32768\nchaining: false\nsteps:\n";
    file_says(
        &[
            job,
            LINES,
            "  - name: o\n    discard: {}\n    partition: rebalance\n",
        ]
        .concat(),
        "job.yaml: it has 900000000 channels between subtasks: write less parallelism, for at most 4194304",
    );
}

#[test]
fn restart_strategies_that_cannot_be() {
    let job = |strategy: &str| {
        format!("version: 1\nname: a\nrestart-strategy: {strategy}\nsteps:\n{LINES}{END}")
    };
    file_says(
        &job("fixed"),
        "job.yaml: line 3, column 19: `restart-strategy` can't be `fixed`; there is: exponential-delay, fixed-delay, failure-rate, none, off, disable",
    );
    file_says(
        &job("{type: fixed-delay, attempts: 0, dely: 1 s}"),
        "job.yaml has 2 problems:
  restart-strategy: `attempts` is 0: write at least 1, or `type: none`
  line 3, column 52: restart-strategy `fixed-delay` has no field `dely`; did you mean `delay`?",
    );
    file_says(
        &job("{type: fixed-delay, delay: 10}"),
        "job.yaml: line 3, column 46: `delay` is `10`: write a number and a unit, such as `500 ms`, `10 s`, `5 min` or `1 h`",
    );
    file_says(
        &job("{type: exponential-delay, backoff-multiplier: 0.5, jitter-factor: 2}"),
        "job.yaml has 2 problems:
  restart-strategy: `backoff-multiplier` is 0.5: write a number of at least 1.0
  restart-strategy: `jitter-factor` is 2: write a number from 0.0 to 1.0",
    );
    file_says(
        &job("{attempts: 1}"),
        "job.yaml: line 3, column 19: `restart-strategy` has no `type`: write for example `type: exponential-delay`",
    );
}

#[test]
fn everything_is_said_at_once_in_the_order_of_the_file() {
    says(
        &[
            "  - name: lines\n    file-source: {}\n",
            "  - name: words\n    split-wrods: {column: line}\n",
            "  - name: k\n    key-by: {columns: word}\n    chaining: maybe\n",
            "  - name: c\n    count: {emit: sometimes}\n    parallelism: 0\n",
            "  - name: k\n    print: {prefx: a}\n    input: cc\n",
        ],
        r#"job.yaml has 8 problems:
  line 5, column 18: step `lines`: `paths` is missing: write `paths: ["books/*.txt"]`
  line 7, column 5: step `words`: there is no operator `split-wrods`; did you mean `split-words`?
  line 10, column 15: step `k`: `chaining` is `maybe`: write `true` or `false`
  line 11, column 5: step `c`: its parallelism is 0: write a number from 1 to 128
  line 12, column 19: step `c`: `emit` can't be `sometimes`; there is: final, updates
  line 14, column 5: step `k`: another step has this name already: give each step a `name` of its own
  line 14, column 5: step `k`: there is no step `cc` for it to read: did you mean `c`?
  line 15, column 13: step `k`: print has no field `prefx`; did you mean `prefix`?"#,
    );
}

#[test]
fn exchanges_that_can_not_be_waited_for() {
    says(
        &[
            "  - name: endless\n    datagen: {}\n",
            "  - name: out\n    exchange: blocking\n    discard: {}\n",
        ],
        "job.yaml: line 6, column 5: step `out`: `exchange: blocking` waits for the end of `endless`, which never ends: remove it",
    );
    says(
        &[
            NUMBERS,
            "  - name: low\n    input: numbers\n    filter: {column: seq, op: lt, value: 5}\n    chaining: false\n",
            "  - name: all\n    input: low\n    exchange: blocking\n    filter: {column: seq, op: ge, value: 0}\n    chaining: false\n",
            "  - name: again\n    inputs: [low, all]\n    filter: {column: seq, op: ge, value: 0}\n",
            END,
        ],
        "job.yaml: `all` can't wait for `low` to finish: they are also connected by pipelined exchange, so that they run together; \
         make the exchange between them `pipelined`, or all others on the way `blocking`",
    );
    file_says(
        "version: 1\nname: a\nexchange: blocking\nsteps:\n  - name: endless\n    datagen: {}\n  - name: out\n    chaining: false\n    discard: {}\n",
        "job.yaml: `out` waits for the end of `endless` (blocking exchange), which never ends",
    );
}

#[test]
fn an_operator_of_an_application_says_what_it_emits() {
    says(
        &[LINES, "  - name: own\n    custom: {name: x}\n", END],
        "job.yaml: line 6, column 5: step `own`: `output` is missing: write the columns that it emits",
    );
    says(
        &[
            LINES,
            "  - name: own\n    custom: {name: x, output: {n: int}}\n",
            END,
        ],
        "job.yaml: line 6, column 5: step `own`: column `n` can't be int: use one of string, int64, float64, bool",
    );
    let own = "  - name: own\n    custom: {name: x, output: {n: int64}, config: {limit: 3, by: [a, true]}}\n";
    let graph = graph_of(&with_steps(&[LINES, own, END].concat()), &options());
    let spec = &graph.vertices[0].operators[1].spec;
    assert_eq!(
        spec,
        r#"{"type":"custom","name":"x","role":"operator","output":[["n","int64"]],"unbounded":false,"config":{"by":["a",true],"limit":3}}"#
    );
}
