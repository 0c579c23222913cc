// Lets Python write the counts of the module _C of a coverage build: ranks that multiprocessing forked end by
// os._exit, which runs no destructor (tests/python/torch_ranks.py).

extern "C" {

void __gcov_dump();
void __gcov_reset();

[[gnu::visibility("default")]] void shardwise_write_counts() {
  __gcov_dump();
  __gcov_reset();  // what follows counts too
}
}
