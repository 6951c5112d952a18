"""The `gpu-train` program: what it prints and the codes it exits with.

Map, in the order a call runs through it:

- `main` is the entry point: a lazy tree of commands, one place where every error becomes one line and a code.
- `command` holds the two click classes everything here is made of: `Group` loads a command's module only
  when the command is asked for, `Command` ends each help with the exit codes it can give.
- one module per command group (`run`, `jobs`, `logs`, `checkpoints`, ...): the options, the call into the
  library, the rows to show. No logic that a script would want as well: that lives in `gpu_train`.
- `invocation` is what the options before the command said, and the way to the workspace.
- `output` writes listings (table, json, jsonl, csv, ids), `text` turns values into words for a person and
  takes the teeth out of hostile names, `progress` draws the one line on stderr, `failure` words the errors.

Every call of the program is a process of its own, so what it imports is what it costs: nothing here imports rich,
numpy or lmdb, nor the library's insides, at module level; `import gpu_train` is light by contract and gives names on
first use.
"""
