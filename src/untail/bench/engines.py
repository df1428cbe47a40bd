"""The engines that are compared: ours and its peers, each as a function from a workload to seconds.

Invariant: all sample at temperature 1 from the same weights in the same precision, with memory enough to run all
sequences at once, and generate exactly the workload's lengths. Setting up and warming up is not timed.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from untail.bench.workloads import Workload
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import save_folder
from untail.types import SequenceSpec

PAGE = 256  # tokens in a page of transformers' cache, its own default

Generate = Callable[[], int]
"""Does the work; the number of tokens generated."""


class BenchEngine(ABC):
    name: str

    @abstractmethod
    def session(self, workload: Workload) -> AbstractContextManager[Generate]:
        """Everything set up for the workload, memory included."""

    def seconds(self, workload: Workload) -> float:
        with self.session(workload) as generate:
            start = time.perf_counter()
            made = generate()
            seconds = time.perf_counter() - start
        if made != workload.tokens:
            raise RuntimeError(f"{self.name} made {made} tokens on {workload.name}, not {workload.tokens}")
        return seconds


class Untail(BenchEngine):
    name = "untail"

    def __init__(self, decoder: Decoder):
        self.decoder = decoder

    @contextmanager
    def session(self, workload: Workload) -> Iterator[Generate]:
        engine = Engine(self.decoder, EngineConfig())

        def generate() -> int:
            for number, (prompt, length) in enumerate(zip(workload.prompts, workload.lengths, strict=True)):
                engine.add(SequenceSpec(str(number), tuple(prompt), length, stream=number))
            made = 0
            while engine.has_work:
                made += sum(len(chunk.tokens) for _, chunk in engine.step())
            return made

        yield generate


class TransformersPadded(BenchEngine):
    """`generate` over one padded batch; a row that has its length is computed on until the longest is done."""

    name = "transformers padded"

    def __init__(self, model: Any):
        self.model = model

    @contextmanager
    def session(self, workload: Workload) -> Iterator[Generate]:
        yield partial(self._generate, workload)

    def _generate(self, workload: Workload) -> int:
        from transformers import GenerationConfig, StoppingCriteriaList

        prompts = torch.tensor(workload.prompts)
        limits = torch.tensor(workload.lengths) + prompts.shape[1]
        settings = GenerationConfig(
            max_new_tokens=max(workload.lengths), do_sample=True, top_k=0, pad_token_id=0, eos_token_id=None
        )
        done = lambda ids, scores, **_: ids.shape[1] >= limits
        with torch.inference_mode():
            out = self.model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                generation_config=settings,
                stopping_criteria=StoppingCriteriaList([done]),
            )
        return sum(min(out.shape[1] - prompts.shape[1], length) for length in workload.lengths)


class TransformersContinuous(BenchEngine):
    """transformers' continuous batching, its cache as large as the whole workload (by default it would take most of the
    machine's memory)."""

    name = "transformers continuous"

    def __init__(self, model: Any):
        self.model = model

    @contextmanager
    def session(self, workload: Workload) -> Iterator[Generate]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        settings = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
        whole = [len(prompt) + length for prompt, length in zip(workload.prompts, workload.lengths, strict=True)]
        pages = sum(-(-tokens // PAGE) for tokens in whole)
        cache = ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=pages, max_batch_tokens=EngineConfig().max_batch_tokens
        )
        with self.model.continuous_batching_context_manager(settings, continuous_batching_config=cache) as manager:

            def generate() -> int:
                for prompt, length in zip(workload.prompts, workload.lengths, strict=True):
                    manager.add_request(prompt, max_new_tokens=length)
                return sum(len(manager.get_result(timeout=600).generated_tokens) for _ in workload.prompts)

            yield generate


def transformers_engines(decoder: Decoder) -> list[BenchEngine]:
    from transformers import AutoModelForCausalLM

    with TemporaryDirectory() as folder:
        save_folder(decoder, None, Path(folder))

        def load() -> Any:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=decoder.embed.dtype).eval()
            model.generation_config.eos_token_id = None  # `generate` takes it from here when its own settings say None
            return model

        return [TransformersPadded(load()), TransformersContinuous(load())]
