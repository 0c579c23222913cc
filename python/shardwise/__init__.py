"""Tensor parallelism over the ranks of one host. `shardwise.torch` joins PyTorch's own ranks."""
