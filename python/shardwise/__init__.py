"""Tensor parallelism over the ranks of one node. `shardwise.torch` is a torch.distributed backend."""
