"""`untail generate`: answer prompts with the native engine, all at once."""

import asyncio
import time
from contextlib import aclosing
from typing import Annotated, Any

import typer

from untail.cli.output import print_json
from untail.notice import say


def generate(
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", help="What to ask; each is answered on its own.")
    ],
    model: Annotated[str, typer.Option(help="A folder, a .gguf file, a hub name, or smollm2.")],
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens that have this much probability together.")
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 256,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer prompts (through the model's chat template) with the native engine."""
    result = asyncio.run(_answer(prompts, model, temperature, top_p, max_tokens, seed))
    if json:
        print_json(result)
        return
    for prompt, output in zip(prompts, result["outputs"], strict=True):
        if len(prompts) > 1:
            say(f"--- {prompt}")
        print(output["text"])
    say(f"{sum(len(o['tokens']) for o in result['outputs'])} tokens, {result['tok_s']:.1f} per second")


async def _answer(
    prompts: list[str], model: str, temperature: float, top_p: float, max_tokens: int, seed: int
) -> dict[str, Any]:
    from untail.backends.native import NativeBackend
    from untail.config import EngineConfig
    from untail.engine.engine import Engine
    from untail.engine.models.load import load_model
    from untail.types import SamplingParams, SequenceSpec, stream_key

    loaded = load_model(model)
    stops = tuple(dict.fromkeys((*loaded.decoder.shape.eos_ids, *loaded.tokenizer.eos_ids)))
    sampling = SamplingParams(temperature, top_p, stop_ids=stops)
    backend = NativeBackend(Engine(loaded.decoder, EngineConfig()))

    async def answer(number: int, prompt: str) -> dict[str, Any]:
        tokens: list[int] = []
        finish = ""
        spec = SequenceSpec(
            str(number), tuple(loaded.tokenizer.chat(prompt)), max_tokens, stream_key(seed, number), sampling
        )
        async with aclosing(backend.generate(spec)) as chunks:
            async for chunk in chunks:
                tokens += chunk.tokens
                finish = "length" if chunk.end == "boundary" else chunk.end or ""
                if chunk.end == "boundary":
                    break
        return {"text": loaded.tokenizer.decode(tokens), "tokens": tokens, "finish": finish}

    start = time.perf_counter()
    try:
        outputs = await asyncio.gather(*(answer(number, prompt) for number, prompt in enumerate(prompts)))
        seconds = time.perf_counter() - start
    finally:
        await backend.close()
    return {"outputs": outputs, "tok_s": sum(len(output["tokens"]) for output in outputs) / seconds}
