"""Workers for the tests of the runtime. By themselves in a module that spawned processes can import quickly."""

import asyncio
import gc
import os
import signal
import time

import numpy as np

from untail.errors import UserError
from untail.flow.worker import Worker


class Echo(Worker):
    """Does as it is told."""

    def __init__(self, greeting: str = "hello"):
        self.greeting = greeting
        self.made_as = (self.name, self.rank, self.world, self.devices)
        self.log: list[str] = []

    def collects_after(self) -> tuple[int, int, int]:
        return gc.get_threshold()

    def where(self):
        return self.made_as, os.getpid(), sorted(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")

    def echo(self, thing):
        return thing

    def note(self, text: str) -> list[str]:
        self.log.append(text)
        return self.log

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return self.name

    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.name

    def fail(self) -> None:
        raise ZeroDivisionError("that was to be expected")

    def refuse(self) -> None:
        raise UserError("steps = -1 is no number of steps; give 1 or more")

    async def fail_later(self) -> None:
        await asyncio.sleep(0)
        raise KeyError("late")

    def unpicklable(self):
        return lambda: 1

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def die(self) -> None:
        os._exit(3)

    def scale(self, tensor, factor: float):
        tensor *= factor
        return tensor

    def array_sum(self, array: np.ndarray) -> float:
        return float(array.sum())

    # ---- channels and locks --------------------------------------------------------------------------------------

    def produce(self, channel, items) -> None:
        for item in items:
            channel.put(item).wait()

    def consume(self, channel, count: int) -> list:
        return [channel.get().wait() for _ in range(count)]

    async def consume_all(self, channel) -> list:
        return [item async for item in channel]

    def get_and_sit(self, channel) -> None:
        channel.get().wait()
        time.sleep(60)

    def pass_on(self, thing, to: str) -> None:
        self.send(thing, to).wait()

    def take_in(self, sender: str):
        return self.recv(sender).wait(100)

    def hold(self, devices: list[int], seconds: float) -> str:
        with self.lock(devices):
            time.sleep(seconds)
        return self.name

    def fight(self, rounds: int, seed: int, devices: int, diary: str) -> int:
        """Take and give devices at random; write down each stay, so that two at once are seen."""
        import random

        chance = random.Random(seed)
        for _ in range(rounds):
            wanted = chance.sample(range(devices), chance.randint(1, devices))
            with self.lock(wanted):
                for device in wanted:
                    write_line(diary, f"in {device} {self.name} {os.getpid()}")
                if chance.random() < 0.02:
                    time.sleep(0.002)
                for device in wanted:
                    write_line(diary, f"out {device} {self.name} {os.getpid()}")
        return rounds


class Late(Echo):
    """Says in a folder that it is being made, and then waits to be let in."""

    def __init__(self, folder):
        super().__init__()
        (folder / "at the door").touch()
        while not (folder / "let in").exists():
            time.sleep(0.01)


class Stubborn(Worker):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such luck")


def write_line(path: str, line: str) -> None:
    """Whole and in order, whoever else writes."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (line + "\n").encode())
    os.close(file)


class Tenant(Worker):
    """Holds a device's memory while it is onloaded."""

    def __init__(self, size: float):
        self.size = size
        self.on = 0
        self.diary: list[str] = []

    def onload(self) -> None:
        self.diary.append("on")
        self.on += 1

    def offload(self) -> None:
        self.diary.append("off")
        self.on -= 1

    def footprint(self) -> float:
        return self.size

    def work(self) -> int:
        return self.on

    def written(self) -> list[str]:
        return self.diary


class Publisher(Worker):
    """Publishes tensors that are all of one number, which is their version."""

    def publish(self, version: int, size: int = 100_000) -> None:
        from untail.flow.weights import Tensors, publish

        publish(self._link, version, {"policy": Tensors(whole(version, size), {"version": version})})

    def publish_until_killed(self, first: int, size: int = 500_000) -> None:
        for version in range(first, first + 100_000):
            self.publish(version, size)

    def look(self, rounds: int) -> list[int]:
        """The versions that it saw; raises if one was not whole."""
        from untail.flow.weights import fetch

        seen = []
        for _ in range(rounds):
            version, found = fetch(self._link, "policy")
            assert found.numbers == {"version": version}
            for tensor in found.tensors.values():
                assert (tensor == version).all(), "a reader saw a part of another version"
            seen.append(version)
        return seen


def whole(version: int, size: int):
    import torch

    return {"a": torch.full((size,), float(version)), "b": torch.full((3, 7), float(version), dtype=torch.bfloat16)}
