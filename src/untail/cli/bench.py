"""`untail bench`: ours against its peers, on identical work in one run."""

import math
from typing import Annotated

import typer

from untail.cli.output import print_json
from untail.errors import UserError
from untail.notice import say

app = typer.Typer(help="Benchmarks against peers, interleaved.", no_args_is_help=True)


@app.command("engine")
def bench_engine(
    peer: Annotated[str, typer.Option(help="Comma-separated: transformers.")] = "transformers",
    workload: Annotated[str, typer.Option(help="Comma-separated: longtail, uniform, group, single.")] = "longtail",
    model: Annotated[str, typer.Option(help="The model to run.")] = "smollm2",
    sequences: Annotated[int, typer.Option(min=1, help="Sequences per workload.")] = 64,
    median: Annotated[int, typer.Option(min=1, help="Median response length in tokens.")] = 20,
    runs: Annotated[int, typer.Option(min=1, help="The median of so many runs.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tokens per second of the native engine and its peers."""
    from untail.bench.engine import compare, make_engines, rows, toy_step_milliseconds
    from untail.bench.workloads import make_workload
    from untail.engine.models.load import load_decoder
    from untail.engine.models.sources import find_model

    decoder = load_decoder(find_model(model))
    workloads = [make_workload(name, decoder.shape.vocab, sequences, median) for name in workload.split(",")]
    engines = make_engines(decoder, [name for name in peer.split(",") if name])
    table = []
    for work in workloads:
        say(f"{work.name}: {len(work.prompts)} sequences, {work.tokens} tokens, the longest {max(work.lengths)}")
        timings: dict[str, list[float]] = {engine.name: [] for engine in engines}
        for name, seconds in compare(engines, work, runs):
            timings[name].append(seconds)
            say(f"  {name}: {seconds:.1f} s, {work.tokens / seconds:.1f} tok/s")
        table += rows(work, timings)
    for row in table:
        say(f"{row['workload']:10} {row['engine']:24} {row['tok_s']:9.1f} tok/s   ratio {row['ratio']:.2f}")
    step, forward = toy_step_milliseconds()
    say(f"4-layer toy, batch 1: {step:.2f} ms a step, {step - forward:.2f} ms of it host overhead")
    if json:
        print_json({"rows": table, "toy_step_ms": step, "toy_host_overhead_ms": step - forward})


@app.command("train")
def bench_train(
    peer: Annotated[str, typer.Option(help="Comma-separated: trl.")] = "trl",
    model: Annotated[str, typer.Option(help="The model to train.")] = "tiny",
    prompts: Annotated[int, typer.Option(min=1, help="Groups in the step.")] = 32,
    group: Annotated[int, typer.Option(min=2, help="Trajectories per group.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="The longest response.")] = 512,
    runs: Annotated[int, typer.Option(min=1, help="The median of so many runs.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Seconds of one GRPO step, ours and its peers', on identical work."""
    from untail.bench.train import compare, draw_work, rows
    from untail.config import load_recipe
    from untail.engine.models.load import load_model
    from untail.tasks.load import load_tasks

    loaded = load_model(model, "cpu")
    task = load_tasks(load_recipe(None, {}, []).task, loaded.tokenizer, loaded.decoder.shape.context - max_tokens)
    work = draw_work(loaded, task.prompts[:prompts], group, max_tokens)
    say(f"{len(work.lengths)} responses, {sum(work.lengths)} tokens, the longest {max(work.lengths)}")
    timings: dict[str, list] = {}
    for name, times in compare(loaded, work, [name for name in peer.split(",") if name], runs):
        timings.setdefault(name, []).append(times)
        say(f"  {name}: rollout {times.rollout_s:.1f} s, update {times.update_s:.1f} s, step {times.step_s:.1f} s")
    table = rows(timings)
    for row in table:
        say(f"{row['system']:8} step {row['step_s']:7.2f} s   ratio {row['ratio']:.2f}")
    if json:
        print_json({"rows": table})


@app.command("draft")
def bench_draft(
    model: Annotated[str, typer.Option(help="The model to run.")] = "smollm2",
    batch: Annotated[str, typer.Option(help="Comma-separated: sequences at once.")] = "1,4,16",
    strategies: Annotated[str, typer.Option(help="Comma-separated, like 'history 2,bandit'; all if empty.")] = "",
    length: Annotated[int, typer.Option(min=2, help="Tokens of a response.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="What is sampled at; 0 is greedy.")] = 0.3,
    runs: Annotated[int, typer.Option(min=1, help="The median of so many runs.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tokens per second of each drafting strategy and batch size, on identical work.

    At temperature 0.3 SmolLM2 is about as sure of its tokens as a reasoning model in RL, and drafts from its history
    are accepted about as often as RhymeRL publishes. At 1 its tokens have 2 nats of entropy: nobody can guess them."""
    from untail.bench.draft import Contender, Teacher, chosen, compare, make_work, question_prompts, rows, sizes
    from untail.engine.models.load import load_model

    configs, batches = chosen(strategies), sizes(batch)
    if not math.isfinite(temperature):
        raise UserError(f"--temperature {temperature} is no temperature; give a finite number")
    loaded = load_model(model, "cpu")
    prompts, context = question_prompts(loaded.tokenizer), loaded.decoder.shape.context
    if max(map(len, prompts)) + length > context:
        raise UserError(f"--length {length}: with its prompt a response has to fit into {model}'s {context} tokens")
    say("first, untimed: the epoch before, and what choosers try")
    contenders = [Contender(name, loaded.decoder, config) for name, config in configs.items()]
    teacher, table = Teacher(contenders, loaded.decoder), []
    for size in batches:
        work = make_work(loaded.decoder, prompts, size, length, temperature)
        teacher.teach(work)
        timings: dict[str, list[tuple[float, float]]] = {name: [] for name in configs}
        for name, seconds, accept_len in compare(contenders, work, runs):
            timings[name].append((seconds, accept_len))
            say(f"  batch {size:3} {name:14} {size * length / seconds:7.1f} tok/s   accepted {accept_len:.2f}")
        table += rows(work, timings)
    for row in table:
        say(f"batch {row['batch']:3} {row['strategy']:14} {row['tok_s']:8.1f} tok/s   speedup {row['speedup']:.2f}")
    if json:
        print_json({"rows": table, "temperature": temperature, "length": length})
