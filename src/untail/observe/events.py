"""The life of every trajectory, one JSON object a line, append-only.

Invariant: `events.jsonl` begins with a `run` event that carries the schema's version, and every figure of a run can be
computed from this file alone. `t` is the backend's clock in seconds since the run began, the time before a resume
included; `step` is on all but `run`. A trajectory holds a slot from `start` or `resume` to the next of `segment`,
`defer`, `park`, `end`, `left`; `tokens` is always how many the model has written of its response so far. A step is
whole in itself: what runs when it closes is deferred or cancelled, and resumed in the next; what is parked may stay so.

| event      | when                                 | fields beyond `e`, `t`, `step` |
|---|---|---|
| run | once, and at every resume | schema, untail, threads, concurrency, engines, devices, plan (if any), recipe |
| step | a step begins | version (of the weights), carried (tokens of what was deferred), parked (ids, if any are) |
| admit | a group is planned | group, prompt, size, keep, budget, predicted, source, text (the prompt's begin), anyway |
| start      | a trajectory gets its first slot     | id, group, prompt, engine, slot, lane |
| segment    | it leaves its slot at a boundary     | id, tokens, why (boundary, cut, lost: its engine is gone) |
| resume     | it gets a slot again                 | id, engine, slot, lane, tokens |
| park       | its turn is over: it leaves its slot and waits for its environment | id, tokens, turn |
| reply      | its environment has replied          | id, tokens, reply (tokens), turn, seconds (parked) |
| move       | it goes to another engine            | id, source, engine, tokens |
| lost       | an engine is gone                    | engine, members (that it had), error |
| back       | an engine takes members again        | engine |
| fork       | a copy came into being at a boundary | id, parent, group, tokens (shared), temperature, engine |
| stop       | a watcher or its group ended it      | id, group, tokens, made, reason, segments, audited |
| cancel     | it is not waited for any longer      | id, group, tokens, made, why (step, group), audited |
| fail       | its engine or its scorer failed      | id, group, tokens, error |
| end | it ended by itself | id, group, tokens, prompt_tokens, end, segments, versions, entropy, predicted, turns |
| left | its slot is free after one of the three above, or an audit's end | id, overrun |
| score      | its reward is known                  | id, reward, failure, text (the response's end) |
| partial    | its partial score failed             | id, failure |
| audit | an audited trajectory came to its end | id, reason, tokens (whole), extra (made for the audit), reward |
| off        | a reason switched itself off         | reason, false_kills, audited, low (of the interval) |
| defer      | the step closed over it while it ran | id, tokens |
| drop       | a whole group is not trained         | group, why, tokens |
| train      | a group goes into the update | group, prompt, members: [{id, tokens, made, reward, use, versions}] |
| rolled_out | the rollout is over | generated, carried, busy_s, computed, recomputed, preemptions, kv_used, peak_mem |
| update     | the weights have changed             | the trainer's figures |
| done       | the step is over                     |  |
| validation | held-out prompts were scored         | score, ci95, n, mean_len, score_failures |

`predicted` is a mean length, or null where nothing is known; `audited`: it runs on, unseen by the rest; `overrun`:
tokens made past the decision; `use`: trained, stopped or masked; `versions`: of the first and the last token.
`tokens` are those that the model wrote, and `made` those of them that were generated for it: a copy shares the others
with its parent, where they count. A copy's first slot is a `resume`: it has no `start`. `turn` counts the model's turns
from 1. Where there is an environment `end` has `turns`, `tool_s` (seconds parked) and `tool_failure` (why it gave no
reply, or null); elsewhere it has none of the three.
`generated` counts the step's tokens and `carried` those of groups that wait for a later update; the rest of
`rolled_out` is since the last one, but `kv_used` (a share, the most in this step) and `peak_mem` (bytes, so far). Where
an engine ran ahead of a decision it has `overrun`: tokens it drew that are in no chunk, nor in `generated`. Where
somebody drafts it has `drafts`: by drafter, proposals (sequences that carried some, step by step), drafted, accepted,
unverified (tokens taken as they were), failures.

Schema 3 brought `fork`, `partial`, `park`, `reply` and `made`; where the last is missing, it is `tokens`.
"""

import json
import os
from pathlib import Path
from typing import Any

from untail.errors import UserError

SCHEMA = 3


class JsonLines:
    """An append-only file of JSON objects; a line is with the operating system when `write` returns."""

    def __init__(self, path: Path, keep: int | None = None):
        """`keep` bytes of an earlier run are kept, the rest is cut off."""
        self.path = path
        if keep is not None:
            self._cut_back(keep)
        self._file = path.open("ab", buffering=0)

    def _cut_back(self, keep: int) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < keep:
            raise UserError(
                f"{self.path} has {size} bytes, but the checkpoint was written when it had {keep}: it was changed; "
                "restore it, or remove the newest folder in checkpoints/ to resume from the one before"
            )
        os.truncate(self.path, keep)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def write(self, row: dict[str, Any]) -> None:
        try:
            self._file.write((json.dumps(row) + "\n").encode())
        except OSError as error:
            raise self._sentence(error) from error

    def sync(self) -> None:
        """On the disk, not only with the operating system: before a checkpoint says how long the file is."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._sentence(error) from error

    def close(self) -> None:
        self._file.close()

    def _sentence(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write {self.path}: {error.strerror}; what was written before is intact: make room, then --resume"
        )


def read_lines(path: Path, begin: int = 0) -> list[dict[str, Any]]:
    """All whole lines from byte `begin` on; a last line that a crash cut short is left out."""
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read().decode()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
