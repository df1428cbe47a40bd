"""A reader has version v whole or what it had before, whatever happens to who publishes."""

import time
from pathlib import Path

import pytest
import torch
from tests.helpers.raying import ray_nodes
from tests.helpers.workers import Publisher

from untail.errors import WeightsError
from untail.flow import weights
from untail.flow.cluster import connect
from untail.flow.weights import Tensors, checksum, fetch, publish

SOON = 300  # seconds: far longer than anything here takes on a busy machine, and far shorter than for ever


@pytest.fixture
def cluster():
    with connect("local") as cluster:
        yield cluster


def test_what_was_published_is_fetched_by_others_whole_and_newest(cluster):
    group = cluster.group(Publisher, devices=[[], []], name="p")
    with pytest.raises(WeightsError, match="'policy' is not there in any version"):
        fetch(cluster.link, "policy")
    for version in (3, 4, 9):
        group[0].publish(version).wait(SOON)
        assert group[1].look(1).wait(SOON) == [version]
        assert fetch(cluster.link, "policy")[0] == version
    with pytest.raises(WeightsError, match="version 9 of 'policy' is not newer than 9"):
        group[0].publish(9).wait(SOON)
    with pytest.raises(WeightsError, match="'policy' is not there in version 3"):
        fetch(cluster.link, "policy", 3)
    assert fetch(cluster.link, "policy", 4)[1].tensors["b"][0, 0] == 4
    files = [path for path in cluster.shelf.folder.iterdir() if path.name != "lock"]
    assert len(files) == 2  # the newest two, and nothing of the refused one


def test_it_outlives_its_publisher(cluster):
    group = cluster.group(Publisher, devices=[[], []], name="p")
    group[0].publish(1).wait(SOON)
    group[0].kill()
    assert group[1].look(1).wait(SOON) == [1]


@pytest.mark.parametrize("when", [0.0, 0.03, 0.1])
def test_a_publisher_killed_in_the_middle_leaves_a_whole_version(cluster, when):
    group = cluster.group(Publisher, devices=[[], []], name="p")
    group[0].publish(1).wait(SOON)
    group[0].publish_until_killed(2)
    reading = group[1].look(20)
    time.sleep(when)
    group[0].kill()
    seen = reading.wait(SOON)
    assert seen == sorted(seen)
    version, found = fetch(cluster.link, "policy")
    assert version >= seen[-1]
    assert all((tensor == version).all() for tensor in found.tensors.values())
    group[0].revive()
    group[0].publish(version + 1).wait(SOON)
    assert group[1].look(1).wait(SOON) == [version + 1]


def test_several_names_are_published_together_or_not_at_all(cluster):
    one, two = Tensors({"a": torch.ones(3)}), Tensors({"a": torch.zeros(3)})
    publish(cluster.link, 5, {"second": two})
    with pytest.raises(WeightsError, match="version 5 of 'second' is not newer"):
        publish(cluster.link, 5, {"first": one, "second": two})
    with pytest.raises(WeightsError, match="'first' is not there"):
        fetch(cluster.link, "first")


def test_damage_on_the_way_is_seen_and_nothing_is_used(cluster):
    publish(cluster.link, 1, {"policy": Tensors({"a": torch.ones(100_000)})})
    (path,) = (path for path in cluster.shelf.folder.iterdir() if path.name != "lock")
    with Path(path).open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    with pytest.raises(WeightsError, match="version 1 of 'policy' arrived damaged: its checksum is"):
        fetch(cluster.link, "policy")


def test_the_checksum_knows_names_kinds_shapes_and_every_byte():
    tensors = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    same = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    assert checksum(tensors) == checksum(same)
    others = [
        {"a": torch.arange(6.0), "c": torch.zeros(2)},
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)},
        {"a": torch.arange(6.0), "b": torch.zeros(2, dtype=torch.int32)},
        {"a": torch.arange(6.0), "b": torch.tensor([0.0, -0.0])},
    ]
    assert len({checksum(other) for other in [tensors, *others]}) == 5


@pytest.mark.slow
def test_on_ray_it_outlives_its_publisher_and_is_whole():
    with ray_nodes(2), connect("ray") as cluster:
        group = cluster.group(Publisher, devices=[[3], [0]], name="p")
        group[0].publish(1).wait(SOON)
        group[0].publish_until_killed(2)
        seen = group[1].look(10).wait(SOON)
        assert seen == sorted(seen)
        group[0].kill()
        version, found = fetch(cluster.link, "policy")
        assert all((tensor == version).all() for tensor in found.tensors.values())
        assert group[1].look(1).wait(SOON) == [version]


@pytest.mark.parametrize("where_they_lie", [False, True])
def test_a_checksum_tells_whatever_differs(where_they_lie, monkeypatch):
    monkeypatch.setattr(weights, "AT_ONCE", 16)
    tensors = {"a": torch.arange(24, dtype=torch.int16), "b": torch.zeros(3), "none": torch.empty(0, 2)}
    swapped, flipped = tensors["a"].clone(), tensors["a"].clone()
    swapped[[3, 5]], flipped[23] = swapped[[5, 3]], flipped[23] ^ 256
    others = [
        {**tensors, "a": swapped},
        {**tensors, "a": flipped},
        {**tensors, "b": torch.tensor([0.0, -0.0, 0.0])},
        {**tensors, "b": torch.zeros(3, 1)},
        {**tensors, "b": torch.zeros(3, dtype=torch.int32)},
        {"b": tensors["b"], "a": tensors["a"], "none": tensors["none"]},
        {**tensors, "c": torch.empty(0)},
    ]
    found = [checksum(each, where_they_lie) for each in (tensors, *others)]
    assert len(set(found)) == len(found)
    assert checksum({name: tensor.clone() for name, tensor in tensors.items()}, where_they_lie) == found[0]
