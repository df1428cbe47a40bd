"""Text to token ids and back, with the model's chat template.

A thin wrapper over `transformers`' tokenizers, so that the rest of untail sees a few methods and one place decides how
a chat is rendered. Importing this module does not import transformers; loading a tokenizer does.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from untail.errors import ModelError

MODEL_TEXT = "What-the-model-has-said."  # stands for a turn, to see what a chat template puts after it


class Tokenizer:
    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._compiled = getattr(tokenizer, "backend_tokenizer", None)
        self.has_chat_template = bool(tokenizer.chat_template)

    @classmethod
    def load(cls, folder: Path, gguf_file: str | None = None) -> "Tokenizer":
        from transformers import AutoTokenizer

        extra = {"gguf_file": gguf_file} if gguf_file else {}
        try:
            return cls(AutoTokenizer.from_pretrained(folder, **extra))
        except Exception as error:  # transformers raises a dozen types here, with one meaning for a user
            raise ModelError(f"{folder} holds no tokenizer that transformers can load: {error}") from error

    @property
    def eos_ids(self) -> tuple[int, ...]:
        eos = self._tokenizer.eos_token_id
        return () if eos is None else (int(eos),)

    @property
    def identity(self) -> str:
        """The same for two tokenizers that mean the same by every token id."""
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        return hashlib.blake2b(repr(vocabulary).encode(), digest_size=8).hexdigest()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        if self._compiled is not None:  # what transformers does around it takes longer than the decoding
            return self._compiled.decode(list(tokens), skip_special_tokens=skip_special)
        return self._tokenizer.decode(
            list(tokens), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )

    def chat(self, prompt: str | list[dict[str, str]], system: str | None = None) -> list[int]:
        """The prompt as the model expects to be asked: through its chat template, or as plain text if it has none."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        if not self.has_chat_template:
            return self._tokenizer.encode("\n".join(message["content"] for message in messages))
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def between_turns(self, reply: str, role: str) -> list[int]:
        """What stands between the text of a model's turn and its next one if somebody replies: the mark that ends the
        turn, the reply, and what asks for the next."""
        forged = next((token for token in self._tokenizer.all_special_tokens if token in reply), None)
        if forged is not None:  # encoded, it would end a turn or begin one
            raise ValueError(f"it holds the model's special token {forged!r}")
        if not self.has_chat_template:
            return self.encode(f"\n{reply}\n")
        spoken = [("user", "?"), ("assistant", MODEL_TEXT), (role, reply)]
        messages = [{"role": who, "content": text} for who, text in spoken]
        chat = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        _, found, rest = chat.partition(MODEL_TEXT)
        if not found:
            raise ModelError("the model's chat template leaves out what the model has said, so it knows no turns")
        return self.encode(rest)

    def save(self, folder: Path) -> None:
        self._tokenizer.save_pretrained(folder)
