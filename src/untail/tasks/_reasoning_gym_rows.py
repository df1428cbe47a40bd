"""A program: reads a request for a reasoning-gym dataset, writes its items, one JSON object a line.

Items are `question`, `answer` and `metadata` (written by `to_plain`: tuples stay tuples), or one `error` for the user.
"""

import json
import os
import sys
from typing import Any, TextIO

from untail.errors import ConfigError
from untail.rewards.reasoning_gym import make_dataset
from untail.rewards.sandbox.plain import to_plain


def write_items(request: dict[str, Any], out: TextIO) -> None:
    name, where, size = request["dataset"], request["where"], request["size"]
    dataset = make_dataset(name, request["params"], size, request["seed"], where)
    for index in range(size):
        try:
            item = dataset[index]
        except Exception as error:  # parameters that pass its checks and still cannot be met
            raise ConfigError(
                f"the dataset {name!r} cannot make item {index} with these {where}.params: "
                f"{type(error).__name__}: {error}"
            ) from None
        plain = {"question": item["question"], "answer": item["answer"], "metadata": to_plain(item["metadata"])}
        out.write(json.dumps(plain) + "\n")


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some generators print
    try:
        write_items(json.load(sys.stdin), out)
    except ConfigError as error:
        out.write(json.dumps({"error": str(error)}) + "\n")
    out.close()


if __name__ == "__main__":
    main()
