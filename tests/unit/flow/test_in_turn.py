"""Who has the device's memory, and when: nobody moves that fits."""

import pytest
import torch

from untail.flow.in_turn import InTurn, build_beside


class Scene:
    """An engine and a trainer that share `room` bytes, and what was asked of them."""

    def __init__(self, room: int, pool: int, state: int, wanted: int):
        self.room, self.pool, self.state, self.wanted = room, pool, state, wanted
        self.engine_awake = self.trainer_awake = True
        self.log: list[str] = []

    def free(self) -> int:
        return self.room - self.pool * self.engine_awake - self.state * self.trainer_awake

    @property
    def memory_wanted(self) -> int:
        return self.wanted + self.state * (not self.trainer_awake)


class FakeBackend:
    def __init__(self, scene: Scene):
        self.scene = scene

    async def sleep(self, level: int) -> None:
        self.scene.log.append("engine sleeps")
        self.scene.engine_awake = False

    async def wake(self) -> None:
        assert self.scene.free() >= self.scene.pool, "its keys and values do not fit"
        self.scene.log.append("engine wakes")
        self.scene.engine_awake = True

    async def resume(self) -> None:
        self.scene.log.append("goes on")


class FakeTrainer:
    def __init__(self, scene: Scene):
        self.scene = scene

    @property
    def memory_wanted(self) -> int:
        return self.scene.memory_wanted

    def update(self) -> None:
        self.scene.trainer_awake = True
        assert self.scene.free() >= 0, "its state does not fit"
        self.scene.log.append("update")

    def sleep(self) -> None:
        self.scene.log.append("trainer sleeps")
        self.scene.trainer_awake = False


async def turns(scene: Scene, gauge, times: int) -> list[str]:
    trainer = FakeTrainer(scene)
    in_turn = InTurn(FakeBackend(scene), trainer, gauge)
    for _ in range(times):
        await in_turn.learn()
        trainer.update()
        await in_turn.sample()
    return scene.log


async def test_what_fits_together_stays():
    scene = Scene(room=100, pool=30, state=20, wanted=50)
    assert await turns(scene, scene, 2) == 2 * ["update", "goes on"]


async def test_without_a_gpu_nothing_moves():
    scene = Scene(room=0, pool=0, state=0, wanted=10**9)
    assert await turns(scene, None, 1) == ["update", "goes on"]


async def test_the_engine_sleeps_where_the_update_lacks_room():
    scene = Scene(room=100, pool=60, state=20, wanted=50)
    assert await turns(scene, scene, 2) == 2 * ["engine sleeps", "update", "engine wakes", "goes on"]


async def test_the_state_leaves_where_the_pool_does_not_fit_beside_it():
    scene = Scene(room=100, pool=90, state=20, wanted=50)
    scene.trainer_awake = False
    order = ["engine sleeps", "update", "trainer sleeps", "engine wakes", "goes on"]
    assert await turns(scene, scene, 2) == 2 * order


class FakeEngine:
    def __init__(self):
        self.log: list[str] = []

    def sleep(self) -> None:
        self.log.append("sleep")

    def wake(self) -> None:
        self.log.append("wake")


class Sleepy:
    sleeps = False

    def sleep(self) -> None:
        self.sleeps = True


@pytest.mark.parametrize("fits", [True, False])
def test_a_trainer_that_does_not_fit_beside_the_engine_is_built_while_it_sleeps(fits):
    engine, attempts = FakeEngine(), []

    def build() -> Sleepy:
        attempts.append(list(engine.log))
        if not fits and "sleep" not in engine.log:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Sleepy()

    trainer = build_beside(engine, build)
    assert attempts == ([[]] if fits else [[], ["sleep"]])
    assert engine.log == ([] if fits else ["sleep", "wake"])
    assert trainer.sleeps is not fits
