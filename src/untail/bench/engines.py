"""The engines that are compared: ours and its peers, each as a function from a workload to seconds.

Invariant: all sample at temperature 1 from the same weights in the same precision, and generate exactly the workload's
lengths. A peer is warmed up and set up outside the timed part, with its own defaults.
"""

import time
from abc import ABC, abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from untail.bench.workloads import Workload
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import save_folder
from untail.types import SequenceSpec


class BenchEngine(ABC):
    name: str

    @abstractmethod
    def generate(self, workload: Workload) -> int:
        """Do the work; the number of tokens generated."""

    def seconds(self, workload: Workload) -> float:
        start = time.perf_counter()
        made = self.generate(workload)
        seconds = time.perf_counter() - start
        if made != workload.tokens:
            raise RuntimeError(f"{self.name} made {made} tokens on {workload.name}, not {workload.tokens}")
        return seconds


class Untail(BenchEngine):
    name = "untail"

    def __init__(self, decoder: Decoder):
        self.decoder = decoder

    def generate(self, workload: Workload) -> int:
        engine = Engine(self.decoder, EngineConfig())
        for number, (prompt, length) in enumerate(zip(workload.prompts, workload.lengths, strict=True)):
            engine.add(SequenceSpec(str(number), tuple(prompt), length, stream=number))
        made = 0
        while engine.has_work:
            made += sum(len(chunk.tokens) for _, chunk in engine.step())
        return made


class TransformersPadded(BenchEngine):
    """`generate` over one padded batch; a row that has its length is filled with padding until the longest is done."""

    name = "transformers padded"

    def __init__(self, model):
        self.model = model

    def generate(self, workload: Workload) -> int:
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
    """transformers' continuous batching."""

    name = "transformers continuous"

    def __init__(self, model):
        self.model = model

    def generate(self, workload: Workload) -> int:
        from transformers import GenerationConfig

        settings = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
        made = 0
        with self.model.continuous_batching_context_manager(generation_config=settings) as manager:
            for prompt, length in zip(workload.prompts, workload.lengths, strict=True):
                manager.add_request(prompt, max_new_tokens=length)
            for _ in workload.prompts:
                result = manager.get_result(timeout=600)
                made += len(result.generated_tokens)
        return made


def transformers_engines(decoder: Decoder) -> list[BenchEngine]:
    from transformers import AutoModelForCausalLM

    with TemporaryDirectory() as folder:
        save_folder(decoder, None, Path(folder))
        load = lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=decoder.embed.dtype).eval()
        return [TransformersPadded(load()), TransformersContinuous(load())]
