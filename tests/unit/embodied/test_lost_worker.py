"""A worker that dies ends the iteration with its name, and nobody waits for it."""

import asyncio

import pytest
from tests.unit.embodied.small import small

from untail.embodied.layout import lay_out
from untail.embodied.loop import Flow
from untail.flow.cluster import connect
from untail.flow.failures import WorkerLost


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "victim"), [("collocated", "env"), ("disaggregated", "policy"), ("hybrid", "env")])
def test_the_one_that_died_is_named(mode, victim):
    config = small(horizon=100_000, episode=100)  # longer than anybody would wait

    async def scene(flow):
        iteration = asyncio.create_task(flow.iterate())
        await asyncio.sleep(1)
        assert not iteration.done()
        getattr(flow, victim)[0].kill()
        await asyncio.wait_for(iteration, 30)

    with connect() as cluster:
        flow = Flow(cluster, config, lay_out(mode, 2, config.shards))
        with pytest.raises(WorkerLost, match=rf"{getattr(flow, victim).name}\[0\] is lost"):
            asyncio.run(scene(flow))
