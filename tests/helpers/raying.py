"""A real Ray cluster of several nodes on this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@contextmanager
def ray_nodes(count: int, cpus: int = 2) -> Iterator[object]:
    """The cluster, joined by this process; `add_node` and `remove_node` change it."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 200 * 2**20},
    )
    try:
        for _ in range(count - 1):
            nodes.add_node(num_cpus=cpus, object_store_memory=200 * 2**20)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
