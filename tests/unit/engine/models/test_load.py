"""What is wrong with a model folder is one sentence."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers.models import random_decoder

from untail.engine.models.folder import read_shape, save_folder
from untail.engine.models.load import choose_device, choose_dtype, load_decoder, refuse_if_too_heavy
from untail.engine.models.shape import Shape
from untail.engine.models.sources import ModelFiles, find_model
from untail.errors import ModelError
from untail.notice import say_once


@pytest.fixture
def folder(tmp_path):
    save_folder(random_decoder("llama"), None, tmp_path)
    return tmp_path


def assert_refused(sentence: str, action) -> None:
    with pytest.raises(ModelError, match=re.escape(sentence)):
        action()


def test_where_there_is_no_model(tmp_path):
    assert_refused("there is no model folder 'nowhere'", lambda: find_model("nowhere"))
    assert_refused("has no config.json", lambda: find_model(str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert_refused("no *.safetensors weights", lambda: find_model(str(tmp_path)))
    (tmp_path / "weights.bin").write_text("")
    assert_refused("is a file but not a .gguf", lambda: find_model(str(tmp_path / "weights.bin")))


def test_a_hub_that_cannot_be_reached():
    assert_refused(
        "'nobody/nothing' is no local folder and the hub did not give it", lambda: find_model("nobody/nothing")
    )


def test_a_file_that_is_not_gguf(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not at all")
    files = find_model(str(tmp_path / "model.gguf"))
    assert_refused("is not a readable GGUF file", lambda: load_decoder(files))


def test_weights_that_do_not_fit(folder):
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({**tensors, name: torch.zeros(3, 3)}, folder / "model.safetensors")
    assert_refused(f"tensor {name!r} has shape (3, 3)", lambda: load_decoder(ModelFiles(folder)))
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    assert_refused(f"tensor {name!r} is missing", lambda: load_decoder(ModelFiles(folder)))
    (folder / "model.safetensors").write_bytes(b"cut short")
    assert_refused("is not a readable safetensors file", lambda: load_decoder(ModelFiles(folder)))


CONFIGS = {
    "model_type 'mamba' is not supported": {"model_type": "mamba"},
    "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
    "use_sliding_window is not supported": {"use_sliding_window": True},
    "attention_bias": {"attention_bias": True},
    "quantised safetensors": {"quantization_config": {"bits": 4}},
    "rope type 'longrope' is not supported": {"rope_parameters": {"rope_type": "longrope"}},
    "rope field 'truncate' is not supported": {
        "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}
    },
}


@pytest.mark.parametrize("sentence", CONFIGS)
def test_a_config_that_asks_for_more_than_the_loop_does(folder, sentence):
    config = json.loads((folder / "config.json").read_text()) | CONFIGS[sentence]
    assert_refused(sentence, lambda: Shape.from_hf(config, "x"))


def test_a_config_that_lacks_something(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    assert_refused("config.json lacks 'hidden_size'", lambda: Shape.from_hf(config, "x"))
    (folder / "config.json").write_text("{")
    assert_refused("cannot be read as JSON", lambda: read_shape(folder))


def test_stop_ids_of_the_generation_config_count(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert read_shape(folder).eos_ids == (3, 4)


def test_without_a_gpu_the_cpu_does_and_a_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    say_once.cache_clear()
    device = choose_device("cuda")
    assert (device.type, choose_dtype("auto", device)) == ("cpu", torch.float32)
    assert capsys.readouterr().err == "engine.device = 'cuda', but torch sees no GPU here: going on with the CPU\n"
    choose_device("cuda")
    choose_device("auto")
    assert capsys.readouterr().err == "", "it is said once"


def test_with_a_gpu_auto_takes_it_in_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (choose_device("auto").type, choose_device("cpu").type) == ("cuda", "cpu")
    assert choose_dtype("auto", torch.device("cuda")) is torch.bfloat16


def test_weights_that_a_gpu_cannot_hold(monkeypatch):
    """What would fit is said: other numbers, or another model."""
    shape = random_decoder("llama").shape
    count = sum(parameter.numel() for parameter in random_decoder("llama").parameters())
    gpu = torch.device("cuda")
    for free, hint in [
        (count * 3, "use engine.dtype = 'bfloat16', a model of at most"),
        (count, "; use a model of at"),
    ]:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert_refused(hint, lambda: refuse_if_too_heavy(shape, gpu, torch.float32))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (count * 4, count * 4))
    refuse_if_too_heavy(shape, gpu, torch.float32)
    refuse_if_too_heavy(shape, torch.device("cpu"), torch.float32)
