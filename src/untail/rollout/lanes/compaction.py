"""3.4, compaction: a free slot that no unfinished work waits for gets new work at once.

So many groups start as fill the free slots, as long as trajectories that are open or ready stay within `ahead` batches,
and the KV pool has room: past its watermark new work would only push out what is unfinished. The engines run at their
target concurrency until then. A group of which one straggler is left counts as that one: with a long tail most groups
under way are such, and counted whole they would leave the slots empty.
"""

import math
from typing import Annotated

from pydantic import Field

from untail.config import Strict
from untail.rollout.points import MECHANISMS, Lane, Mechanism, View


@MECHANISMS.register("compaction")
class Compaction(Mechanism, Lane):
    sections = "3.4"

    class Config(Strict):
        # Batches of trajectories that may be open or ready. With more, they would wait the longer for their update; how
        # old they may become, `rollout.max_staleness` says.
        ahead: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 4.0
        watermark: Annotated[float, Field(gt=0, le=1)] = 0.9  # of the KV pool

    config: Config

    def refill(self, view: View) -> int:
        fill = math.ceil((view.concurrency - view.running) / view.group)
        if not fill or view.kv_used >= self.config.watermark:
            return 0
        under_way = view.open / view.group + len(view.ready)
        allowed = math.floor(self.config.ahead * view.wanted - under_way)
        return max(0, min(fill, allowed))
