"""Ray's tasks that each start from the same table, write to all of it, and disturb nobody.

    python ray_rollouts.py [MEGABYTES]

Two raylets stand for two nodes. Workers of the first map the driver's memory: a descriptor travels. Workers of the second
restore an image that the driver saved, as they would from shared storage on another machine.
"""

import os
import sys
import tempfile

import numpy as np
import ray
from ray.cluster_utils import Cluster

import cowslip
import cowslip.ray

TASKS = 8
# Of this machine alone. Ray takes 127.0.0.1 for the machine's address in its network.
NODES = {"first": "127.0.0.2", "second": "127.0.0.3"}


@ray.remote(num_cpus=1)
def rollout(template, table, seed):
    """Adds noise to a table of its own."""
    rng = np.random.default_rng(seed)
    before = int(table.sum())
    np.add.at(table, rng.integers(len(table), size=1000), 1)
    with template.branch() as again:
        assert int(again["table"].sum()) == before, "nobody else's writes are here"
    return os.getpid(), before, int(table.sum()) - before


def main(megabytes):
    cluster = Cluster()
    for node, address in NODES.items():
        cluster.add_node(num_cpus=2, resources={node: TASKS}, node_ip_address=address, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as shared_storage, cowslip.Arena(f"{megabytes + 64}M") as arena:
            table = arena.full((megabytes << 17,), 3, np.int64)
            image = os.path.join(shared_storage, "table.cowslip")
            with cowslip.ray.template(arena, {"table": table}, image=image) as template:
                table[:] = 0  # the driver goes on; the tasks have the table as it was
                for node in NODES:
                    tasks = [
                        rollout.options(resources={node: 1}).remote(template, template[table], seed)
                        for seed in range(TASKS)
                    ]
                    told = ray.get(tasks)
                    assert all(before == 3 * len(table) for _, before, _ in told)
                    processes = len({process for process, _, _ in told})
                    print(f"{node} node: {TASKS} tasks in {processes} processes, {sum(it[2] for it in told)} writes")
            assert not table.any()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
