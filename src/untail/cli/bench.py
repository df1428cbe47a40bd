"""`untail bench`: ours against its peers, on identical work in one run."""

from typing import Annotated

import typer

from untail.cli.output import print_json, say

app = typer.Typer(help="Benchmarks against peers, interleaved.", no_args_is_help=True)


@app.command("engine")
def bench_engine(
    peer: Annotated[str, typer.Option(help="Comma-separated: transformers.")] = "transformers",
    workload: Annotated[str, typer.Option(help="Comma-separated: longtail, uniform, group, single.")] = "longtail",
    model: Annotated[str, typer.Option(help="The model to run.")] = "smollm2",
    sequences: Annotated[int, typer.Option(min=1, help="Sequences per workload.")] = 64,
    median: Annotated[int, typer.Option(min=1, help="Median response length in tokens.")] = 32,
    runs: Annotated[int, typer.Option(min=1, help="The median of so many runs.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tokens per second of the native engine and its peers."""
    from untail.bench.engine import compare, make_engines, make_workload, rows, toy_step_milliseconds
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
