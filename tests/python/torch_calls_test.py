"""Calls of torch.distributed that torch restricts to the backends that it knows by name."""
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from shardwise import _torch_calls
from torch_ranks import RanksTest

CPU = torch.device("cpu")


def backend_of(group):
    return group._get_backend(CPU)


class CallsTest(RanksTest):
    def test_monitored_barrier(self):
        @self.on_ranks(1, 3)
        def body(rank, size):
            begin = time.monotonic()
            if rank == size - 1:
                time.sleep(0.2)
            dist.monitored_barrier()
            self.assertGreaterEqual(time.monotonic() - begin, 0.19)
            dist.monitored_barrier(dist.group.WORLD, timedelta(seconds=20), True)
            pair = dist.new_group([0])
            dist.monitored_barrier(pair)  # torch's own, with a warning, on the ranks outside

    def test_monitored_barrier_names_the_late_ranks(self):
        @self.on_ranks(3)
        def body(rank, size):
            dist.barrier()
            if rank > 0:
                time.sleep(1)
                return
            with self.assertRaisesRegex(dist.DistBackendError, "monitored_barrier .*timed out waiting for ranks: 1.*2"):
                dist.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=True)

    def test_monitored_barrier_has_the_group_s_timeout(self):
        @self.on_ranks(2, timeout_s=1)
        def body(rank, size):
            dist.barrier()
            if rank == 1:
                time.sleep(1.5)
                return
            with self.assertRaisesRegex(dist.DistBackendError, "of 1 s"):
                dist.monitored_barrier()

    def test_other_groups_have_torch_s_functions(self):
        @self.on_ranks(2)
        def body(rank, size):
            gloo = dist.new_group(backend="gloo")
            dist.monitored_barrier(gloo)
            self.assertEqual(gloo._get_sequence_number_for_group(), backend_of(gloo)._get_sequence_number_for_group())
            distributed_c10d._set_pg_timeout(timedelta(seconds=7), gloo)
            self.assertEqual(backend_of(gloo).options._timeout, timedelta(seconds=7))
            import torch.testing._internal.distributed.fake_pg  # noqa: F401  registers a backend that does nothing
            fake = dist.new_group(backend="fake")
            for call in (lambda: dist.monitored_barrier(fake), lambda: fake._get_sequence_number_for_group()):
                with self.assertRaisesRegex((ValueError, RuntimeError), "only implemented for GLOO|not yet support sequence"):
                    call()
            with self.assertRaisesRegex(AttributeError, "options"):  # of a backend that has none
                torch._C._distributed_c10d.Backend.options.fget(backend_of(fake))

    def test_groups_whose_backend_has_no_name_have_torch_s_functions(self):
        class Nameless:
            def name(self):
                raise RuntimeError("getBackendName is not implemented.")  # as c10d's base class does

        class Group(dist.ProcessGroup):
            _device_types = [CPU]

            def _get_backend(self, device):
                return Nameless()

        @self.on_ranks(1)
        def body(rank, size):
            group = Group(0, 1)
            self.assertIsNone(_torch_calls._backend_of(group))
            with self.assertRaises(Exception) as refused:  # torch does not know the group
                dist.monitored_barrier(group)
            self.assertNotIn("getBackendName", str(refused.exception))
            with self.assertRaisesRegex(AttributeError, "options"):
                torch._C._distributed_c10d.Backend.options.fget(Nameless())

    def test_sequence_numbers(self):
        @self.on_ranks(2)
        def body(rank, size):
            group = dist.new_group()
            group._set_sequence_number_for_group()
            begin = group._get_sequence_number_for_group()
            for _ in range(3):
                dist.all_reduce(torch.ones(2), group=group)
            self.assertEqual(group._get_sequence_number_for_group(), begin + 3)
            self.assertEqual(backend_of(group)._get_sequence_number_for_group(), begin + 3)

    def test_options_and_timeouts(self):
        @self.on_ranks(2)
        def body(rank, size):
            options = backend_of(dist.group.WORLD).options
            self.assertEqual((options.backend, options._timeout), ("shardwise", timedelta(seconds=20)))
            group = dist.new_group(timeout=timedelta(seconds=9))
            self.assertEqual(backend_of(group).options._timeout, timedelta(seconds=9))
            with warnings.catch_warnings(action="error"):
                distributed_c10d._set_pg_timeout(timedelta(milliseconds=300), group)
                distributed_c10d._set_pg_timeout(timedelta(seconds=33))
            self.assertEqual(backend_of(dist.group.WORLD).options._timeout, timedelta(seconds=33))
            if rank == 0:
                with self.assertRaisesRegex(dist.DistBackendError, r"rank 0 waited \S+ s of 0\.3 s"):
                    dist.all_reduce(torch.ones(2), group=group)
            dist.barrier()

    def test_a_timeout_of_zero_is_refused(self):
        """It is not the group's timeout."""
        @self.on_ranks(2)
        def body(rank, size):
            for call in (lambda: dist.monitored_barrier(timeout=timedelta(0)),
                         lambda: dist.group.WORLD.allreduce([torch.ones(2)], timeout=timedelta(0))):
                with self.assertRaisesRegex(ValueError, "a call's timeout must be above 0 ms; got 0; omit it"):
                    call()
            dist.barrier()

    def test_ddp_logs_the_name(self):
        @self.on_ranks(2)
        def body(rank, size):
            model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
            self.assertEqual(model._get_ddp_logging_data()["backend_name"], "shardwise")
            gloo = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=dist.new_group(backend="gloo"))
            self.assertEqual(gloo._get_ddp_logging_data()["backend_name"], "gloo")
