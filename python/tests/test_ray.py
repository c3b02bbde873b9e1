"""Templates in Ray: a descriptor on the same node, an image between nodes."""

import importlib.util
import os
import sys

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

from ray.cluster_utils import Cluster  # noqa: E402

import cowslip  # noqa: E402
import cowslip.ray  # noqa: E402

N = 1 << 18
# Ray takes 127.0.0.1 for the machine's address in its network.
LOOPBACK = {"here": "127.0.0.2", "there": "127.0.0.3"}


@pytest.fixture(scope="module")
def nodes(request):
    """Two raylets; the driver is on the first."""
    if importlib.util.find_spec("moto"):
        request.getfixturevalue("bucket")
    # Workers cannot import the tests.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cluster = Cluster()
    for name, address in LOOPBACK.items():
        cluster.add_node(num_cpus=2, resources={name: 100}, node_ip_address=address, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def arena(nodes):
    with cowslip.Arena("64M") as arena:
        yield arena


def on(node, function):
    return ray.remote(num_cpus=1, resources={node: 1}, max_retries=0)(function)


def look_and_write(template, table, held, item):
    """Of a worker: what it finds, after which it writes to all that it was handed."""
    with template.branch() as branch:
        found = [int(it.sum()) for it in (table, branch["table"], held[0])]
        for it in (table, branch["table"], held[0]):
            it[...] = item
    restored = cowslip.ray._restored
    return os.getpid(), found, table.shape, table.strides, restored and restored[0]


def hand_on(template, node):
    return ray.get(on(node, look_and_write).remote(template, template["table"], [template["table"]], 1))


def why_not(function, *arguments):
    with pytest.raises((ray.exceptions.RayError, cowslip.Error)) as raised:
        ray.get(function.remote(*arguments))
    return str(raised.value)


@pytest.mark.parametrize("node", ["here", "there"])
def test_tasks_have_private_arrays_of_that_instant(arena, tmp_path, node):
    table = arena.array(np.arange(N).reshape(-1, 8))
    part = table[3:, ::2]
    image = tmp_path / "table.cowslip"
    with cowslip.ray.template(arena, {"table": table}, image=image) as template:
        expected = [int(it.sum()) for it in (part, table, table)]
        held = ray.put([template[table]])
        table[:] = 0
        told = ray.get([on(node, look_and_write).remote(template, template[part], held, it) for it in range(12)])
        assert all(it[1:4] == (expected, part.shape, part.strides) for it in told)
        assert os.getpid() not in {it[0] for it in told}
        identity = cowslip._native.identity(image)
        assert {it[4] == identity for it in told} == {node == "there"}, "the image is read on the other node only"
        mine = ray.get(held)[0]
        assert (mine == np.arange(N).reshape(-1, 8)).all(), "nobody's writes are in it"
        del mine
        # The image is any other's.
        assert (cowslip.restore(image).state["table"] == np.arange(N).reshape(-1, 8)).all()
    del held
    with arena.freeze(timeout=60) as then:
        assert not then[table].any()


def test_an_image_in_an_object_store(arena):
    # Workers find the store by the environment that their raylets have from this process.
    if "AWS_ENDPOINT" not in os.environ:
        pytest.skip("moto is not installed")
    table = arena.full((N,), 2, np.int64)
    with cowslip.ray.template(arena, {"table": table}, image="s3://images/table") as template:
        for node in LOOPBACK:
            told = ray.get(on(node, look_and_write).remote(template, template[table], [template[table]], 1))
            assert told[1] == [2 * N] * 3


def test_a_task_hands_it_on(arena, tmp_path):
    table = arena.full((N,), 2, np.int64)
    with cowslip.ray.template(arena, {"table": table}, image=tmp_path / "table.cowslip") as template:
        for nodes in (("here", "there"), ("there", "here"), ("there", "there")):
            told = ray.get(on(nodes[0], hand_on).remote(template, nodes[1]))
            assert told[1] == [2 * N] * 3


def test_another_node_needs_an_image(arena):
    table = arena.full((N,), 2, np.int64)
    with cowslip.ray.template(arena, {"table": table}) as template:
        arguments = (template, template[table], [template[table]], 1)
        assert ray.get(on("here", look_and_write).remote(*arguments))[1] == [2 * N] * 3
        assert "template(..., image=PATH)" in why_not(on("there", look_and_write), *arguments)


def test_another_image_of_that_name_is_refused(arena, tmp_path):
    table = arena.full((N,), 2, np.int64)
    image = tmp_path / "table.cowslip"
    with cowslip.ray.template(arena, {"table": table}, image=image) as template:
        arena_of_another = cowslip.Arena("64M")
        arena_of_another.save(image, {"table": arena_of_another.zeros(N)}).result(60)
        arguments = (template, template[table], [template[table]], 1)
        assert "another image" in why_not(on("there", look_and_write), *arguments)


def test_what_the_block_did_not_make_is_refused(arena):
    table = arena.full((N,), 2, np.int64)
    with cowslip.ray.template(arena, {"table": table}) as template:
        late = ray.put(template)
        assert ray.get(late).branch()["table"][0] == 2
    with pytest.raises(cowslip.UsageError, match="within the block"):
        ray.put(template)
    assert "has ended" in why_not(on("here", lambda it: it), late)


def test_a_killed_worker_frees_the_arena(arena):
    table = arena.full((N,), 2, np.int64)

    def die(mine):
        mine[:] = 9
        os.kill(os.getpid(), 9)

    with cowslip.ray.template(arena) as template:
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(on("here", die).remote(template[table]))
    with arena.freeze(timeout=60) as then:
        assert (then[table] == 2).all()
