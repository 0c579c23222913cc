"""Groups, object collectives and re-initialization: features that torch.distributed builds on collectives."""
import socket
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from torch_ranks import RanksTest, value


class GroupsTest(RanksTest):
    def sum_of(self, ranks, group):
        x = value((5,), dist.get_rank())
        dist.all_reduce(x, group=group)
        self.assertTrue(torch.equal(x, sum(value((5,), rank) for rank in ranks)))

    def test_names_rank_and_size(self):
        @self.on_ranks(1, 3)
        def body(rank, size):
            self.assertEqual((dist.get_backend(), dist.get_rank(), dist.get_world_size()), ("shardwise", rank, size))
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            self.assertEqual((backend.name(), backend.rank(), backend.size()), ("shardwise", rank, size))

    def test_new_groups(self):
        @self.on_ranks(3)
        def body(rank, size):
            pairs = [(0, 1), (1, 2), (0, 2)]
            groups = [dist.new_group(pair) for pair in pairs]
            alone = [dist.new_group([one]) for one in range(size)]
            for pair, group in zip(pairs, groups):
                if rank in pair:
                    self.sum_of(pair, group)
            self.sum_of([rank], alone[rank])
            self.sum_of(range(size), dist.new_group())
            self.sum_of(range(size), None)
            dist.destroy_process_group(alone[rank])
            self.sum_of(range(size), None)

    def test_a_group_next_to_a_gloo_group(self):
        @self.on_ranks(2)
        def body(rank, size):
            gloo = dist.new_group(backend="gloo")
            self.sum_of(range(size), gloo)
            self.sum_of(range(size), None)
            dist.monitored_barrier(gloo)

    def test_mesh(self):
        @self.on_ranks(2)
        def flat(rank, size):
            mesh = init_device_mesh("cpu", (2,))
            self.sum_of(range(2), mesh.get_group())

        @self.on_ranks(4)
        def square(rank, size):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            self.sum_of([rank // 2 * 2, rank // 2 * 2 + 1], mesh["tp"].get_group())
            self.sum_of([rank % 2, rank % 2 + 2], mesh["dp"].get_group())
            self.assertEqual(dist.get_backend(mesh["tp"].get_group()), "shardwise")

    def test_reinitialization_with_a_tcp_store(self):
        @self.on_ranks(3)
        def body(rank, size):
            server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
            ports = [server and server.port]
            dist.broadcast_object_list(ports)
            store = server or dist.TCPStore("127.0.0.1", ports[0])
            for _ in range(3):  # the store still has the keys of the previous group
                dist.destroy_process_group()
                dist.init_process_group("shardwise", store=store, rank=rank, world_size=size)
                self.sum_of(range(size), None)
                self.sum_of(range(size), dist.new_group())
            dist.barrier()

    def test_two_groups_on_two_threads(self):
        """As torch's asynchronous checkpoints use groups."""
        @self.on_ranks(2)
        def body(rank, size):
            other, failures = dist.new_group(), []

            def gather():
                try:
                    for step in range(100):
                        gathered = [None] * size
                        dist.all_gather_object(gathered, (rank, step), group=other)
                        self.assertEqual(gathered, [(peer, step) for peer in range(size)])
                except BaseException as failure:
                    failures.append(failure)

            thread = threading.Thread(target=gather)
            thread.start()
            for _ in range(300):
                self.sum_of(range(size), None)
            thread.join()
            self.assertEqual(failures, [])

    def test_objects(self):
        @self.on_ranks(2, 3)
        def body(rank, size):
            mine, all_of_them = {"rank": rank, "text": "x" * rank}, [{"rank": r, "text": "x" * r} for r in range(size)]
            gathered = [None] * size
            dist.all_gather_object(gathered, mine)
            self.assertEqual(gathered, all_of_them)

            objects = [mine, rank] if rank == 1 else [None, None]
            dist.broadcast_object_list(objects, src=1)
            self.assertEqual(objects, [all_of_them[1], 1])

            gathered = [None] * size if rank == 0 else None
            dist.gather_object(mine, gathered, dst=0)
            self.assertEqual(gathered, all_of_them if rank == 0 else None)

            scattered = [None]
            dist.scatter_object_list(scattered, all_of_them if rank == 0 else None, src=0)
            self.assertEqual(scattered, [mine])

    def test_memory_that_peers_read(self):
        @self.on_ranks(2)
        def body(rank, size):
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            self.assertTrue(backend.supports_tensor_alloc(torch.device("cpu")))
            x = backend.allocate_tensor(5000, dtype=torch.float32, device=torch.device("cpu"))
            x.copy_(value((5000,), rank))
            dist.all_reduce(x)
            self.assertTrue(torch.equal(x, value((5000,), 0) + value((5000,), 1)))
            dist.destroy_process_group()
            self.assertEqual(x[0], value((1,), 0) + value((1,), 1))  # it outlives the group

    def test_a_missing_rank_is_named(self):
        @self.on_ranks(2)
        def body(rank, size):
            store = dist.HashStore()
            with self.assertRaisesRegex(dist.DistBackendError, f"timed out waiting for rank {1 - rank}; rank {rank} waited"):
                from shardwise import _C
                _C.create_backend(store, rank, size, timedelta(milliseconds=300))

    def test_ranks_as_threads(self):
        """With a store in memory; the backend's creator releases the GIL while it waits."""
        @self.on_ranks(1)
        def body(rank, size):
            from shardwise import _C
            store, backends = dist.HashStore(), [None, None]

            def create(rank):
                backends[rank] = _C.create_backend(store, rank, 2, timedelta(seconds=20))

            threads = [threading.Thread(target=create, args=(rank,)) for rank in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual([backend.rank() for backend in backends], [0, 1])

    def test_another_node_is_rejected(self):
        @self.on_ranks(1)
        def body(rank, size):
            from shardwise import _C
            store = dist.HashStore()
            with self.assertRaises(dist.DistBackendError):  # rank 1 is missing; rank 0's entry stays in the store
                _C.create_backend(store, 0, 2, timedelta(milliseconds=1))
            entry = bytearray(store.get("shardwise/1/0"))
            node, host = slice(32, 40), slice(248, 312)  # of comm::PeerInfo
            self.assertIn(socket.gethostname().encode()[:63], entry[host])
            entry[node] = bytes(byte ^ 1 for byte in entry[node])
            entry[host] = b"elsewhere".ljust(64, b"\0")
            store.set("shardwise/2/1", bytes(entry))
            with self.assertRaisesRegex(ValueError, r"must be on one node.*; got rank 0 on .*, rank 1 on elsewhere \("):
                _C.create_backend(store, 0, 2, timedelta(seconds=20))


class DeviceStringTest(GroupsTest):
    """The backend string names the device, as in programs with another backend for GPUs."""

    backend = "cpu:shardwise"

    def test_names_rank_and_size(self):
        @self.on_ranks(2)
        def body(rank, size):
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            self.assertEqual((backend.name(), backend.rank(), backend.size()), ("shardwise", rank, size))

    def test_mesh(self):
        @self.on_ranks(4)
        def square(rank, size):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            self.sum_of([rank // 2 * 2, rank // 2 * 2 + 1], mesh["tp"].get_group())
