"""The exchange of weights (exchange.py) as the driver has it, between the learner and the engines that are there.

Invariant: what is sent is in the store, too, where an engine that got nothing finds it: an exchange that breaks costs
time, and nothing else. It is counted, and one that breaks `MOST` times in a row is not tried again.
"""

from collections.abc import Sequence

from untail.errors import WeightsError
from untail.flow.failures import FlowError
from untail.flow.handle import all_ended
from untail.flow.worker import OneWorker
from untail.notice import say_once

MOST = 3


class FarExchange:
    def __init__(self, learner: OneWorker, weights: str):
        """`weights`: what the recipe says of them; with "store" there is no exchange."""
        self._learner = learner
        self._weights = weights
        self._members: list[str] = []  # engines that are in it
        self._in_a_row = 0  # times that it broke
        self._untold = 0  # of all times, those that are in no figures yet

    async def send(self, version: int, engines: Sequence[OneWorker]) -> None:
        """To these."""
        if self._weights == "store" or self._in_a_row == MOST or not engines:
            return
        try:
            if self._members != [engine.name for engine in engines]:
                await self._meet(engines)
            await all_ended([self._learner.send_weights(version), *(engine.receive_weights() for engine in engines)])
            self._in_a_row = 0
        except (FlowError, WeightsError) as error:
            self._broke(error)

    def forget(self) -> None:
        """A member is gone, and the others must meet again."""
        self._members = []

    def figures(self) -> dict[str, float]:
        """Since they were last asked for."""
        broken, self._untold = self._untold, 0
        return {"exchanges_broken": broken} if broken else {}

    async def _meet(self, engines: Sequence[OneWorker]) -> None:
        address = await self._learner.free_address()
        members = [self._learner, *engines]
        await all_ended(member.join_exchange(address, rank, len(members)) for rank, member in enumerate(members))
        self._members = [engine.name for engine in engines]

    def _broke(self, error: Exception) -> None:
        self.forget()
        self._in_a_row += 1
        self._untold += 1
        if self._in_a_row == MOST:
            say_once(
                f'flow.weights = "{self._weights}": the exchange broke {MOST} times in a row ({error}); from now on '
                "weights come from the store"
            )
