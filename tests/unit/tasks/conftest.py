from collections.abc import Sequence
from typing import Any

import pytest

from untail.tokenizer import Tokenizer


class Characters:
    """A tokenizer of one token per character, with a chat template, as far as `Tokenizer` uses one."""

    chat_template = "there is one"
    eos_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, tokens))

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        turns = [f"<{message['role']}>{message['content']}" for message in messages]
        return self.encode("".join([*turns, "<assistant>"]))


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(Characters())
